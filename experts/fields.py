"""Typed reading of what a model file claims: each value is present, of its type and within its limits, or refused."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import CheckpointError, UnsupportedModelError


class Fields:
    """A view on config.json's content or on the GGUF key-values with one prefix; a null counts as absent."""

    def __init__(self, file: Path, values: Mapping[str, Any], prefix: str = "") -> None:
        self.file = file
        self._values = values
        self._prefix = prefix

    def has(self, key: str) -> bool:
        return self._values.get(self._prefix + key) is not None

    def get(self, key: str) -> Any:
        """The raw value, or None."""
        return self._values.get(self._prefix + key)

    def broken(self, key: str, problem: str) -> CheckpointError:
        return CheckpointError(
            f"{self.file}: key {self._prefix + key!r} {problem}; correct it or download the model again"
        )

    def unsupported(self, key: str, problem: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"{self.file}: key {self._prefix + key!r} {problem}")

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """An integer in low..high. A list of equal numbers, one per layer, counts as that number."""
        value = self._present(key, default)
        if isinstance(value, list) and value:
            if any(item != value[0] for item in value):
                raise self.unsupported(key, "differs between layers, which is not supported")
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.broken(key, f"is {value!r}, not an integer")
        if not low <= value <= high:
            raise self.broken(key, f"is {value}, not within {low} to {high}")
        return value

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """A number in low..high."""
        value = self._present(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            raise self.broken(key, f"is {value!r}, not a number")
        if not low <= value <= high:
            raise self.broken(key, f"is {value}, not within {low} to {high}")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        value = self._present(key, default)
        if not isinstance(value, bool):
            raise self.broken(key, f"is {value!r}, not true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._present(key, default)
        if not isinstance(value, str):
            raise self.broken(key, f"is {value!r}, not a text")
        return value

    def numbers(self, key: str, count: int) -> list[float]:
        """A list of `count` positive numbers."""
        values = self._present(key, None)
        if not isinstance(values, list) or len(values) != count:
            raise self.broken(key, f"is not a list of {count} numbers")
        if not all(type(value) in (int, float) and 0 < value <= sys.float_info.max for value in values):
            raise self.broken(key, "holds values that are not positive numbers")
        return [float(value) for value in values]

    def section(self, key: str) -> "Fields":
        """The object under the key; an empty one where it is absent."""
        return Fields(self.file, self.mapping(key))

    def mapping(self, key: str) -> Mapping[str, Any]:
        """The object under the key as it is; an empty one where it is absent."""
        value = self._present(key, {})
        if not isinstance(value, dict):
            raise self.broken(key, f"is {value!r}, not an object")
        return value

    def _present(self, key: str, default: Any) -> Any:
        value = self.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.broken(key, "is missing")
        return value
