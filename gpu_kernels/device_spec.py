"""Spec: the numbers of an emulated accelerator, and how they are written on a command line."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from .device import Cost
from .sizes import parse_size

_TFLOPS = MappingProxyType({"other": 25.0})


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What a card does, with the names and units of a hardware profile; the defaults are those of a small one.

    read_gb_s: its memory; tflops: by packed kind, "other" for those not named; launch_us: of each kernel; hop_us: of
    each copy over the link beside its bytes; to_gb_s, from_gb_s: the link, from and to pinned memory. number: in the
    device's name.
    """

    vram_bytes: int = 8 << 30
    read_gb_s: float = 320.0
    tflops: Mapping[str, float] = field(default_factory=lambda: _TFLOPS)
    launch_us: float = 4.0
    hop_us: float = 12.0
    to_gb_s: float = 16.0
    from_gb_s: float = 16.0
    number: int = 0

    def __post_init__(self) -> None:
        if "other" not in self.tflops:
            raise ValueError('an emulated device needs tflops for "other", what is not named')
        rates = {"read (read_gb_s)": self.read_gb_s, "link (to_gb_s)": self.to_gb_s}
        rates |= {"link (from_gb_s)": self.from_gb_s}
        for name, value in (rates | {f"tflops of {kind}": value for kind, value in self.tflops.items()}).items():
            if not value > 0:
                raise ValueError(f"{name} of an emulated device is {value:g}; it must be above 0")
        for name, value in {"launch_us": self.launch_us, "hop_us": self.hop_us, "vram_bytes": self.vram_bytes}.items():
            if not value >= 0:
                raise ValueError(f"{name} of an emulated device is {value:g}; it must not be below 0")

    @property
    def name(self) -> str:
        return f"emulated:{self.number}"

    def work_s(self, cost: Cost) -> float:
        """Of kernels but for their launches: as long as their memory or their arithmetic takes."""
        tflops = self.tflops.get(cost.kind, self.tflops["other"])
        return max(cost.nbytes / self.read_gb_s / 1e9, cost.flops / tflops / 1e12)

    @property
    def launch_s(self) -> float:
        return self.launch_us / 1e6

    @property
    def hop_s(self) -> float:
        return self.hop_us / 1e6


def _number(scales: Mapping[str, float], example: str) -> Callable[[str], float]:
    def parse(text: str) -> float:
        unit = text.lstrip("0123456789.")
        if unit not in scales:
            raise ValueError(f"{text!r} has no unit of {', '.join(u for u in scales if u)}; write it such as {example}")
        try:
            return float(text.removesuffix(unit)) * scales[unit]
        except ValueError:
            raise ValueError(f"{text!r} is no number; write one such as {example}") from None

    return parse


_rate = _number({"GBps": 1.0, "GB/s": 1.0, "MBps": 1e-3, "MB/s": 1e-3}, "16GBps")
_time = _number({"us": 1.0, "ms": 1e3}, "5us")
_flops = _number({"": 1.0}, "25")


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{text!r} is no number; write one such as 1")
    return int(text)


# By key: the fields that it sets, and how it is read.
_KEYS: Mapping[str, tuple[tuple[str, ...], Callable[[str], object]]] = MappingProxyType(
    {
        "vram": (("vram_bytes",), parse_size),
        "link": (("to_gb_s", "from_gb_s"), _rate),
        "read": (("read_gb_s",), _rate),
        "tflops": (("tflops",), lambda text: {"other": _flops(text)}),
        "launch": (("launch_us",), _time),
        "hop": (("hop_us",), _time),
        "number": (("number",), _count),
    }
)


def parse_spec(text: str) -> Spec:
    """Of "vram=2GiB,link=16GBps"; what is not given has its default. Raises ValueError naming the key that is wrong."""
    values: dict[str, object] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.strip().partition("=")
        if key not in _KEYS or not equals:
            raise ValueError(f"an emulated device has no {part.strip()!r}; it has {', '.join(f'{k}=' for k in _KEYS)}")
        fields, parse = _KEYS[key]
        if fields[0] in values:
            raise ValueError(f"an emulated device has two {key}=; give one")
        try:
            parsed = parse(value)
        except ValueError as error:
            raise ValueError(f"{key}= of an emulated device: {error}") from None
        values |= dict.fromkeys(fields, parsed)
    return Spec(**values)  # type: ignore[arg-type]  # each parser gives what its fields are
