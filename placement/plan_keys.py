"""Reading a plan's JSON key by key: each value is there, of its type and within its bounds, or it is refused."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .plan import PlanError

REMEDY = "make the plan anew by: isotherm plan"
MAX_TEXT = 4096
MAX_INTEGER = 1 << 60
MAX_ENTRIES = 4096


@dataclass(frozen=True, slots=True)
class Keys:
    """An object of the file; path: where in it, such as "layers[3]."."""

    file: str
    values: Mapping[str, Any]
    path: str = ""

    def broken(self, key: str, problem: str) -> PlanError:
        return PlanError(f"{self.file}: key {self.path + key!r} {problem}; {REMEDY}")

    def get(self, key: str) -> Any:
        if key not in self.values:
            raise self.broken(key, "is missing")
        return self.values[key]

    def text(self, key: str) -> str:
        value = self.get(key)
        if not isinstance(value, str) or len(value) > MAX_TEXT:
            raise self.broken(key, f"is not a text of up to {MAX_TEXT} characters")
        return value

    def integer(self, key: str, low: int = 0, high: int = MAX_INTEGER) -> int:
        value = self.get(key)
        if type(value) is not int or not low <= value <= high:
            raise self.broken(key, f"is {_short(value)}, not an integer within {low} to {high}")
        return value

    def number(self, key: str, low: float = 0.0) -> float:
        return _number(self, key, self.get(key), low)

    def numbers(self, key: str) -> tuple[float, ...]:
        return tuple(_number(self, f"{key}[{i}]", value, -math.inf) for i, value in enumerate(self._list(key)))

    def texts(self, key: str) -> tuple[str, ...]:
        values = self._list(key)
        if not all(isinstance(value, str) and len(value) <= MAX_TEXT for value in values):
            raise self.broken(key, "holds something else than texts")
        return tuple(values)

    def section(self, key: str) -> "Keys":
        return self._keys(key, self.get(key))

    def sections(self, key: str, most: int = MAX_ENTRIES) -> list["Keys"]:
        return [self._keys(f"{key}[{i}]", value) for i, value in enumerate(self._list(key, most))]

    def named_texts(self, key: str) -> dict[str, str]:
        inner = self.section(key)
        return {name: inner.text(name) for name in inner.values}

    def named_numbers(self, key: str) -> dict[str, float]:
        inner = self.section(key)
        return {name: inner.number(name, -math.inf) for name in inner.values}

    def _list(self, key: str, most: int = MAX_ENTRIES) -> Sequence[Any]:
        values = self.get(key)
        if not isinstance(values, list) or len(values) > most:
            raise self.broken(key, f"is not a list of up to {most} entries")
        return values

    def _keys(self, key: str, value: Any) -> "Keys":
        if not isinstance(value, dict) or len(value) > MAX_ENTRIES:
            raise self.broken(key, "is not an object")
        return Keys(self.file, value, f"{self.path}{key}.")


def _number(keys: Keys, key: str, value: Any, low: float) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or value < low:
        raise keys.broken(key, f"is {_short(value)}, not a finite number" + ("" if low < 0 else f" from {low:g} up"))
    return float(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
