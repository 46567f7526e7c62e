"""A hardware profile as a file: JSON, checked to the last number, and replaced in one step.

HardwareError(ValueError)   a profile that cannot be used; the text names the file, the key and the remedy
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

from .files import replacing
from .hardware import BLOCKS, MOST_SPREAD, Estimate, HardwareProfile

SCHEMA = 1
MOST_BYTES = 1 << 20
_MOST_CHARACTERS = 4096  # of a text
_MOST_ENTRIES = 1024  # of a table or a list
_TEXTS = {bool: "true or false", str: "a text", int: "a whole number", float: "a number"}

_POSITIVE = 1e-9
_RANGES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {  # by the name of a quantity, else by its unit, which is how the name ends
        "threads": (1, 1 << 16), "cores": (1, 1 << 16), "ram_bytes": (1, 1 << 60), "vram_bytes": (1, 1 << 60),
        "bytes": (0, 1 << 60), "overlap": (0, 1), "spread": (0, MOST_SPREAD), "ssd_read_gb_s": (0, 1e6), 
        "gb_s": (_POSITIVE, 1e6),
        "gops": (_POSITIVE, 1e9), "tflops": (_POSITIVE, 1e6), "us": (0, 1e9), "ns_per_kib": (_POSITIVE, 1e9),
        "ns_per_value": (0, 1e9),
    }
)  # fmt: skip


class HardwareError(ValueError):
    """A hardware profile cannot be used; the message names the file, the key and the remedy."""


def save_profile(profile: HardwareProfile, path: Path) -> None:
    """Write a profile; a reader finds the file before or the whole new one. Raises OSError."""
    with replacing(path) as file:
        file.write(profile_text(profile).encode())


def profile_text(profile: HardwareProfile) -> str:
    """The JSON of a profile."""
    return json.dumps({"schema": SCHEMA} | asdict(profile), indent=1, allow_nan=False) + "\n"


def load_profile(path: Path) -> HardwareProfile:
    """Read a profile. Raises HardwareError for what is none."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # a name can hold what no file system takes
        raise HardwareError(
            f"{path}: cannot be read ({getattr(error, 'strerror', error)}); "
            "make a hardware profile by `isotherm calibrate --out FILE`"
        ) from error
    return parse_profile(text, str(path))


def parse_profile(text: bytes, name: str) -> HardwareProfile:
    """The profile in the text of a file `name`. Raises HardwareError."""
    place = _Place(name)
    if len(text) > MOST_BYTES:
        place.refuse(f"is larger than {MOST_BYTES >> 10} KiB, so no hardware profile; name another file")
    try:
        value = json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise HardwareError(f"{name}: is not JSON ({error}); make one by `isotherm calibrate --out FILE`") from error
    if not isinstance(value, dict):
        place.refuse(f"is {_shown(value)}; it must be an object, as `isotherm calibrate --out FILE` writes")
    schema = value.pop("schema", None)
    if type(schema) is not int or schema != SCHEMA:
        place.at("schema").refuse(f"is {_shown(schema)}; only {SCHEMA} can be read here, so calibrate again")
    profile: HardwareProfile = _record(HardwareProfile, value, place)
    return profile


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {max(names, key=names.count)!r} stands there twice")
    return value


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in a file a value stands, and of which quantity it is."""

    file: str
    key: str = ""
    quantity: str = ""

    def at(self, name: str, quantity: str = "") -> "_Place":
        return _Place(self.file, f"{self.key}.{name}" if self.key else name, quantity or self.quantity or name)

    def refuse(self, text: str) -> NoReturn:
        raise HardwareError(f"{self.file}: {self.key + ' ' if self.key else ''}{text}")


def _read(kind: Any, value: Any, place: _Place) -> Any:
    """A value of the type `kind`, which is one of those that fields of a profile have."""
    if is_dataclass(kind):
        return _record(kind, value, place)
    if get_origin(kind) is dict:
        key_kind, item_kind = get_args(kind)
        return _table(key_kind, item_kind, value, place)
    if get_origin(kind) is tuple:
        return _list(get_args(kind)[0], value, place)
    number = kind in (int, float)
    if type(value) is not kind and not (kind is float and type(value) is int):
        place.refuse(f"is {_shown(value)}; it must be {_TEXTS[kind]}")
    if number:
        return kind(_in_range(value, place))
    if kind is str and (len(value) > _MOST_CHARACTERS or not value.isprintable()):
        place.refuse(f"must be one line of at most {_MOST_CHARACTERS} characters")
    return value


def _record(kind: Any, value: Any, place: _Place) -> Any:
    known = {field.name: field for field in fields(kind)}
    if not isinstance(value, dict):
        place.refuse(f"is {_shown(value)}; it must be an object with {', '.join(known)}")
    for name in value:
        if name not in known:
            near = get_close_matches(name, known, 1)
            place.at(name).refuse(f"is not known; {f'{near[0]} is, so call it that' if near else 'remove it'}")
    for name, field in known.items():
        if name not in value and field.default is MISSING and field.default_factory is MISSING:
            place.at(name).refuse("is missing; add it, or calibrate again")
    hints = get_type_hints(kind)
    return kind(**{name: _read(hints[name], item, _field(kind, name, place)) for name, item in value.items()})


def _field(kind: Any, name: str, place: _Place) -> _Place:
    """A value is of the quantity that its estimate is of."""
    return place.at(name, place.quantity if kind is Estimate and name == "value" else name)


def _table(key_kind: Any, kind: Any, value: Any, place: _Place) -> Any:
    if not isinstance(value, dict) or not 1 <= len(value) <= _MOST_ENTRIES:
        place.refuse(f"is {_shown(value)}; it must be an object with 1 to {_MOST_ENTRIES} entries")
    table = {}
    for name, item in value.items():
        here = place.at(name)
        if not name.isprintable() or not 1 <= len(name) <= 64:
            here.refuse("has a name that is no line of 1 to 64 characters; rename it")
        if key_kind is int and (not name.isdecimal() or not 1 <= int(name) <= 1 << 16 or name != str(int(name))):
            here.refuse(f"is named {name!r}; it must be named by a whole number from 1 to {1 << 16}")
        table[key_kind(name)] = _read(kind, item, here)
    return table


def _list(kind: Any, value: Any, place: _Place) -> Any:
    if not isinstance(value, list) or len(value) > _MOST_ENTRIES:
        place.refuse(f"is {_shown(value)}; it must be a list")
    if place.quantity == "block_ns_per_kib" and len(value) != len(BLOCKS):
        place.refuse(f"has {len(value)} entries; it must have {len(BLOCKS)}, for {', '.join(map(str, BLOCKS))} tokens")
    return tuple(_read(kind, item, place.at(str(i), place.quantity)) for i, item in enumerate(value))


def _in_range(value: float, place: _Place) -> float:
    unit = next(name for name in _RANGES if place.quantity == name or place.quantity.endswith("_" + name))
    low, high = _RANGES[unit]
    if not low <= value <= high:  # NaN fails too
        place.refuse(f"is {_shown(value)}; it must be a number from {low:g} to {high:g}")
    return value


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
