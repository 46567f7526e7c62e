"""Parameters that a model writes as bare text, as JSON by what the tool's schema says of their type."""

import json
from collections.abc import Mapping
from typing import Any

_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}


def is_text(schema: object) -> bool:
    """Whether a value can be nothing but a string."""
    return _types(schema) == {"string"}


def value_text(text: str, schema: object, value: Any, *, padded: bool) -> str:
    """The JSON text of a value that may be no string. value: what its text is as JSON; None if it is none."""
    bare = text.strip()
    bare = _PYTHON_WORDS.get(bare, bare)
    types = _types(schema)
    is_json = value is not None or bare in ("null", *_PYTHON_WORDS.values())
    if is_json and not ("string" in types and not _fits(json.loads(bare, strict=False), types)):
        strict = bare if _is_strict(bare) else _written(value)
        if strict is not None:
            return strict
    return quoted(text.removesuffix("\n") if padded else text)


def quoted(text: str) -> str:
    """A JSON string."""
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    """A part of a JSON string."""
    return quoted(text)[1:-1]


def _types(schema: object) -> set[str]:
    """The types that a schema names, none if it leaves them open."""
    if not isinstance(schema, Mapping):
        return set()
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return {kinds}
    if isinstance(kinds, list):
        return {kind for kind in kinds if isinstance(kind, str)}
    for name in ("anyOf", "oneOf"):
        if isinstance(schema.get(name), list):
            each = [_types(part) for part in schema[name]]
            return set().union(*each) if all(each) else set()
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
        return {"string"}
    return set()


def _fits(value: Any, types: set[str]) -> bool:
    """Whether a value is of one of the types that are no strings."""
    if isinstance(value, bool):
        return "boolean" in types
    return any(isinstance(value, _TYPES.get(name, ())) for name in types if name != "boolean")


def _is_strict(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _written(value: Any) -> str | None:
    """None for numbers that JSON does not know."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return None


def _refuse(word: str) -> None:
    raise ValueError(word)
