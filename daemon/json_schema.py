"""JSON schemas of clients: what of them can be kept, what means nothing to a text, and what is refused by name.

The matcher's library would pass over some of what it does not know. What a schema says is kept or refused here instead.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import orjson

from .errors import InvalidRequestError
from .schema_branches import exclusive

_TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"})
# By what lies under them: one schema, a list of them, schemas by name, or plain values.
_ONE = frozenset({"additionalItems", "additionalProperties", "items"})
_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAPS = frozenset({"$defs", "definitions", "patternProperties", "properties"})
_COUNTS = frozenset({"maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"})
_NUMBERS = frozenset({"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"})
_PLAIN = _COUNTS | _NUMBERS | {"$ref", "const", "enum", "format", "pattern", "required", "type"}
# They say nothing about the text of a value; names that begin with "x-" neither.
_ANNOTATIONS = frozenset(
    {
        "$comment",
        "$schema",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "default",
        "deprecated",
        "description",
        "discriminator",
        "example",
        "examples",
        "externalDocs",
        "readOnly",
        "title",
        "writeOnly",
        "xml",
    }
)
# As orjson writes those that have no short escape; DEL it writes as it is. An escaped backslash may come before.
_CONTROL = re.compile(r"(?<!\\)(?:\\\\)*\\u00|\x7f")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaLimits:
    """depth: of schemas within schemas. schemas, values: in all; values are those of enums and consts. properties: of
    one object. references: on the way from one to what it stands for. count: of characters, items or properties that a
    keyword may ask for."""

    depth: int = 48
    schemas: int = 5_000
    values: int = 5_000
    properties: int = 400
    references: int = 16
    count: int = 100_000


def check_schema(source: str, param: str, limits: SchemaLimits | None = None) -> dict[str, Any]:
    """The schema without what means nothing to a text. One that asks for nothing means any JSON object.

    Raises InvalidRequestError that names the keyword and where it stands.
    """
    try:
        schema = orjson.loads(source)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(f"{param} is not valid JSON: {error}", param) from None
    kept = _Walk(schema, param, limits or SchemaLimits()).run()
    return kept if kept.keys() - _MAPS or "properties" in kept or "patternProperties" in kept else {"type": "object"}


class _Walk:
    """One pass over a schema."""

    def __init__(self, root: Any, param: str, limits: SchemaLimits) -> None:
        self._root = root
        self._param = param
        self._limits = limits
        self._schemas = 0
        self._values = 0
        self._seen: set[int] = set()  # schemas, which live as long as the root does
        self._referred: list[tuple[str, str, Any]] = []

    def run(self) -> dict[str, Any]:
        if self._root is True:
            return {}
        if not isinstance(self._root, dict):
            raise self._fault("it must be a JSON object", "")
        kept = self._schema(self._root, "#", 0)
        assert isinstance(kept, dict)
        self._check_referred()
        return kept

    def _schema(self, schema: Any, path: str, depth: int) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise self._fault("a schema must be an object, true or false", path)
        self._seen.add(id(schema))
        self._schemas += 1
        if self._schemas > self._limits.schemas:
            raise self._fault(f"it has more than {self._limits.schemas} schemas in it", "")
        if depth > self._limits.depth:
            raise self._fault(f"schemas are nested deeper than {self._limits.depth}", path)
        kept = {}
        for keyword, value in schema.items():
            if keyword in _ANNOTATIONS or (keyword.startswith("x-") and keyword != "x-guidance"):
                continue
            if (
                keyword == "$id" and depth == 0
            ):  # the name of the whole; within it one would change what references mean
                continue
            kept[keyword] = self._keyword(keyword, value, f"{path}/{keyword}", depth)
        self._check_object(schema, path)
        if "oneOf" in kept and "anyOf" not in kept and exclusive([self._resolved(each) for each in kept["oneOf"]]):
            kept = {"anyOf" if keyword == "oneOf" else keyword: value for keyword, value in kept.items()}
        return kept

    def _keyword(self, keyword: str, value: Any, path: str, depth: int) -> Any:
        if keyword in _LISTS or (keyword == "items" and isinstance(value, list)):
            return self._list(keyword, value, path, depth)
        if keyword in _ONE:
            return self._schema(value, path, depth + 1)
        if keyword in _MAPS:
            return self._map(value, path, depth)
        if keyword not in _PLAIN:
            raise self._fault(f"the keyword {keyword!r} is not supported", path)
        self._check_plain(keyword, value, path)
        return int(value) if keyword in _COUNTS else value

    def _list(self, keyword: str, value: Any, path: str, depth: int) -> list[Any]:
        if not isinstance(value, list) or not value:
            raise self._fault(f"{keyword} must be a list of schemas", path)
        return [self._schema(each, f"{path}/{i}", depth + 1) for i, each in enumerate(value)]

    def _map(self, value: Any, path: str, depth: int) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._fault("it must be an object of schemas", path)
        if _CONTROL.search(orjson.dumps(list(value)).decode()):
            raise self._fault("a name holds a control character, which is not supported", path)
        return {name: self._schema(each, f"{path}/{name}", depth + 1) for name, each in value.items()}

    def _check_plain(self, keyword: str, value: Any, path: str) -> None:
        if keyword in _COUNTS:
            self._check_count(value, path)
        elif keyword == "type":
            names = value if isinstance(value, list) else [value]
            if not names or not all(isinstance(name, str) and name in _TYPES for name in names):
                raise self._fault(f"type must be among {', '.join(sorted(_TYPES))}", path)
        elif keyword == "format" and value not in _FORMATS:
            raise self._fault(f"the format {value!r} is not supported", path)
        elif keyword == "$ref":
            self._check_ref(value, path)
        elif keyword in ("enum", "const"):
            self._check_values(keyword, value, path)
        elif keyword == "pattern" and not isinstance(value, str):
            raise self._fault("pattern must be a string", path)

    def _check_count(self, value: Any, path: str) -> None:
        is_integer = not isinstance(value, bool) and isinstance(value, int | float) and float(value).is_integer()
        if not is_integer or not 0 <= value <= self._limits.count:
            raise self._fault(f"it must be an integer from 0 to {self._limits.count}", path)

    def _check_values(self, keyword: str, value: Any, path: str) -> None:
        if keyword == "enum" and (not isinstance(value, list) or not value):
            raise self._fault("enum must be a list of values", path)
        self._values += len(value) if keyword == "enum" else 1
        if self._values > self._limits.values:
            raise self._fault(f"it lists more than {self._limits.values} values", path)
        if _CONTROL.search(orjson.dumps(value).decode()):
            raise self._fault(f"{keyword} holds a control character, which is not supported", path)

    def _check_object(self, schema: Mapping[str, Any], path: str) -> None:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise self._fault("required must be a list of names", f"{path}/required")
        if len(properties) > self._limits.properties:
            problem = f"an object has {len(properties)} properties; at most {self._limits.properties} are allowed"
            raise self._fault(problem, f"{path}/properties")
        fewest = schema.get("minProperties", 0)
        if fewest > max(len(set(required)), 1):  # a name could come twice
            raise self._fault("minProperties is only supported up to 1 or the number of required ones", path)

    def _check_ref(self, value: Any, path: str) -> None:
        """Refuses references out of the schema, and those that lead round in a circle without a value in between."""
        seen: set[str] = set()
        while value is not None:
            target = self._target(value, path)
            if value in seen:
                raise self._fault(f"$ref {value!r} leads back to itself", path)
            if len(seen) > self._limits.references:
                raise self._fault(f"$ref {value!r} goes over more than {self._limits.references} others", path)
            seen.add(value)
            self._referred.append((value, path, target))
            value = target.get("$ref") if isinstance(target, dict) else None

    def _check_referred(self) -> None:
        """What is referred to must be a schema that was looked at, not a value or an annotation."""
        for reference, path, target in self._referred:
            if not isinstance(target, bool) and id(target) not in self._seen:
                raise self._fault(f"$ref {reference!r} does not point to a schema", path)

    def _resolved(self, schema: Any) -> Any:
        """What a reference stands for; checked before."""
        if isinstance(schema, dict) and schema.keys() == {"$ref"}:
            return self._target(schema["$ref"], "")
        return schema

    def _target(self, reference: Any, path: str) -> Any:
        """What a reference stands for: only pointers into the schema itself are known."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise self._fault(f"$ref {reference!r} is not supported: it must begin with '#/'", path)
        target = self._root
        for part in reference.split("/")[1:]:
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict) and name in target:
                target = target[name]
            elif isinstance(target, list) and name.isdecimal() and int(name) < len(target):
                target = target[int(name)]
            else:
                raise self._fault(f"$ref {reference!r} points to nothing", path)
        return target

    def _fault(self, problem: str, path: str) -> InvalidRequestError:
        place = f" at {path}" if path else ""
        return InvalidRequestError(f"{self._param}{place}: {problem}", self._param)
