"""Numbers of bytes, in words and out of them."""

_UNITS = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "GB": 10**9, "MB": 10**6, "KB": 10**3, "B": 1}


def size_text(nbytes: int) -> str:
    """Such as "1.5 GiB", "3.07 MiB" or, where it is small and not round, "65,535 bytes"."""
    for unit in ("GiB", "MiB"):
        if nbytes >= _UNITS[unit]:
            return f"{nbytes / _UNITS[unit]:.2f}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{nbytes} bytes" if nbytes < 1024 else f"{nbytes >> 10} KiB" if nbytes % 1024 == 0 else f"{nbytes:,} bytes"


def parse_size(text: str) -> int:
    """Bytes of "2GiB", "512 MiB", "8GB" or "1000". Raises ValueError, naming the units, for anything else."""
    number = text.strip()
    scale = 1
    for unit, factor in _UNITS.items():
        if number.endswith(unit):
            number, scale = number.removesuffix(unit).rstrip(), factor
            break
    try:
        nbytes = float(number) * scale
    except ValueError:
        nbytes = -1.0
    if not 0 <= nbytes < float(1 << 60):
        raise ValueError(f"{text!r} is no size; write one such as 2GiB (units: {', '.join(_UNITS)})")
    return int(nbytes)
