"""The fields that ask for an answer of a certain form, under all the names that clients know."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from ...daemon.errors import InvalidRequestError
from ...daemon.grammar_text import lark_of
from ...daemon.structure import Structure
from ..service import Service
from .schemas import CompletionFields

ANY_OBJECT = Structure("json_schema", '{"type": "object"}')

_MAX_CHOICES = 1000
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_META = re.compile(r"[^\w ]", re.ASCII)


def structure_of(service: Service, body: CompletionFields) -> Structure | None:
    """The form that a request asks for; it has been compiled. Raises InvalidRequestError that names the field."""
    wishes = dict(_wishes(body))
    if len(wishes) > 1:
        first, second, *_ = wishes
        raise InvalidRequestError(f"{first} and {second} both give the answer a form; send one of them", second)
    for param, structure in wishes.items():
        service.structures.compile(structure, param)
        return structure
    return None


def _wishes(body: CompletionFields) -> list[tuple[str, Structure]]:
    """Each field that gives a form, and the form."""
    found = [
        ("response_format", _response_format(body.response_format)),
        ("structured_outputs", _structured_outputs(body.structured_outputs)),
        *((name, read(getattr(body, name), name)) for name, read in _ALIASES.items()),
    ]
    return [(name, structure) for name, structure in found if structure is not None]


def _response_format(value: Mapping[str, Any] | None) -> Structure | None:
    if value is None or value.get("type") == "text":
        return None
    kind, field = value.get("type"), "response_format"
    if kind == "json_object":  # some clients send a schema with it
        return ANY_OBJECT if value.get("schema") is None else _json(value["schema"], f"{field}.schema")
    if kind != "json_schema":
        raise InvalidRequestError(f'{field}.type must be "text", "json_object" or "json_schema"', f"{field}.type")
    given = value.get("json_schema")
    if not isinstance(given, Mapping):
        raise InvalidRequestError(f"{field}.json_schema must be an object with name and schema", f"{field}.json_schema")
    name = given.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        param = f"{field}.json_schema.name"
        raise InvalidRequestError(f"{param} must be 1 to 64 letters, digits, underscores or dashes", param)
    if not isinstance(given.get("strict"), bool | None):
        raise InvalidRequestError(f"{field}.json_schema.strict must be true or false", f"{field}.json_schema.strict")
    schema = given.get("schema")
    return ANY_OBJECT if schema is None else _json(schema, f"{field}.json_schema.schema")


def _structured_outputs(value: Mapping[str, Any] | None) -> Structure | None:
    field = "structured_outputs"
    given = {name: each for name, each in (value or {}).items() if each is not None and each is not False}
    unknown = given.keys() - _KINDS.keys() - _HINTS
    if unknown:
        param = f"{field}.{min(unknown)}"
        raise InvalidRequestError(f"{param} is not supported by this server; leave it out", param)
    kinds = sorted(given.keys() - _HINTS)
    if value and len(kinds) != 1:
        raise InvalidRequestError(f"{field} must hold exactly one of {', '.join(_KINDS)}", field)
    return next((_KINDS[kind](given[kind], f"{field}.{kind}") for kind in kinds), None)


def _json(value: Any, param: str) -> Structure | None:
    if value is None:
        return None
    if isinstance(value, str):
        return Structure("json_schema", value)
    if not isinstance(value, Mapping | bool):
        raise InvalidRequestError(f"{param} must be a JSON schema, an object", param)
    return Structure("json_schema", orjson.dumps(value).decode())


def _any_json(value: Any, param: str) -> Structure | None:
    if not isinstance(value, bool):
        raise InvalidRequestError(f"{param} must be true or false", param)
    return ANY_OBJECT


def _regex(value: Any, param: str) -> Structure | None:
    return Structure("regex", _text(value, param)) if value else None


def _grammar(value: Any, param: str) -> Structure | None:
    return Structure("lark", lark_of(_text(value, param), param)) if value else None


def _choice(value: Any, param: str) -> Structure | None:
    if not value:
        return None
    texts = isinstance(value, list) and all(isinstance(each, str) and each for each in value)
    if not texts or not 0 < len(value) <= _MAX_CHOICES:
        raise InvalidRequestError(f"{param} must be a list of 1 to {_MAX_CHOICES} texts", param)
    return Structure("regex", "|".join(map(_escaped, value)))


def _escaped(text: str) -> str:
    """A regular expression for the text itself."""
    return _META.sub(lambda match: f"\\x{{{ord(match[0]):x}}}", text)


def _text(value: Any, param: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequestError(f"{param} must be a text", param)
    return value


Reader = Callable[[Any, str], Structure | None]

_KINDS: dict[str, Reader] = {
    "json": _json,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "json_object": _any_json,
}
_HINTS = frozenset({"disable_any_whitespace", "disable_fallback"})  # ask for what is so in any case
_ALIASES: dict[str, Reader] = {
    "guided_json": _json,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _grammar,
    "json_schema": _json,
    "regex": _regex,
    "grammar": _grammar,
    "ebnf": _grammar,
}
