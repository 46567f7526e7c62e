"""Grammars of calls: what an answer must look like for the readers to find calls of known tools in it."""

from collections.abc import Mapping, Sequence
from typing import Any

from .lark import Lark
from .shapes import Parameters, Shape
from .typed_value import is_text

Schema = Mapping[str, Any]


def calls_rule(lark: Lark, shape: Shape, tools: Mapping[str, Schema], *, single: bool) -> str:
    """One call of any of the tools, or several. tools: their parameters by name, as llguidance takes them."""
    call = lark.either([_call(lark, shape, name, schema) for name, schema in tools.items()])
    more = "" if single or shape.single else f"({_row(lark.literal(shape.between), call)}){{0,127}}"
    return lark.rule(_row(lark.literal(shape.begin), call, more, lark.literal(shape.end)))


def _call(lark: Lark, shape: Shape, name: str, schema: Schema) -> str:
    arguments = lark.json(schema) if shape.parameters is None else _parameters(lark, shape.parameters, schema)
    if shape.numbered:
        head = _row(lark.literal(f"{shape.opening}{name}:"), lark.rule("/[0-9]{1,3}/"), lark.literal(shape.middle))
    else:
        head = lark.literal(shape.opening + name + shape.middle)
    return lark.rule(_row(head, arguments, lark.literal(shape.closing)))


def _parameters(lark: Lark, form: Parameters, schema: Schema) -> str:
    """Each parameter once, in the schema's order."""
    required = schema.get("required", ())
    each = [
        (_parameter(lark, form, key, part, schema), key in required)
        for key, part in (schema.get("properties") or {}).items()
    ]
    if not form.between:
        return " ".join(rule if needed else f"{rule}?" for rule, needed in each)
    return _separated(lark.literal(form.between), each)


def _separated(between: str, each: Sequence[tuple[str, bool]]) -> str:
    """The parameters with something between them, of which some may be left out."""
    rest = ""  # after at least one
    choices: list[str] = []  # by which one is the first
    for rule, needed in reversed(each):
        choices = [] if needed else choices
        choices.insert(0, _row(rule, rest))
        rest = _row(f"({between} {rule})" if needed else f"({between} {rule})?", rest)
    return f"({' | '.join(choices)})" + ("" if any(needed for _, needed in each) else "?") if choices else ""


def _parameter(lark: Lark, form: Parameters, key: str, part: Any, root: Schema) -> str:
    text = is_text(part)
    opening = lark.literal(form.opening.format(key=key, text="true" if text else "false"))
    if text and form.bare:
        values = part.get("enum", [part["const"]] if "const" in part else None)
        if values is None:
            return lark.rule(_row(opening, lark.upto(form.closing)))
        value = lark.either([lark.literal(each + form.closing) for each in values])
        return lark.rule(_row(opening, value))
    return lark.rule(_row(opening, lark.json(_with_names(part, root)), lark.literal(form.closing)))


def _with_names(part: Any, root: Schema) -> Schema:
    """A part of a schema with what it may refer to."""
    names = {key: root[key] for key in ("$defs", "definitions", "x-guidance") if key in root}
    return {**names, **part} if isinstance(part, Mapping) else names


def _row(*parts: str) -> str:
    return " ".join(part for part in parts if part)
