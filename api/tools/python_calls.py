"""Calls that are written as a Python list: [name(key=value), other()]."""

import ast
import json
import re
import warnings
from typing import Any

from .calls import Calls
from .source import Scan, Source, Waiting

_HEAD = re.compile(r"\s*([A-Za-z_][\w.\-]*)\s*\(")
_MAX_NAME = 300
_WORDS = {"true": True, "false": False, "null": None}  # JSON's words, which models mix in


def python_calls(source: Source, calls: Calls) -> Scan[bool]:
    """Read the list, a call at a time. False if it is no call: what `source` has recorded then is text."""
    yield from source.space()
    if not (yield from source.literal("[")):
        return False
    while True:
        call = yield from _one(source, calls)
        if call is None:
            return False
        name, arguments = call
        yield calls.begin(name)
        yield calls.arguments(json.dumps(arguments, ensure_ascii=False))
        source.record()
        yield from source.space()
        if not (yield from source.literal(",")):
            return (yield from source.literal("]"))


def _one(source: Source, calls: Calls) -> Waiting[tuple[str, dict[str, Any]] | None]:
    yield from source.space()
    while (head := _HEAD.match(source.buffer)) is None:
        if source.ended or not re.fullmatch(r"[A-Za-z_][\w.\-]*\s*|", source.buffer) or len(source.buffer) > _MAX_NAME:
            return None
        yield None
    if not calls.known(head[1]):
        return None
    end = yield from _closing(source, head.end())
    if end is None:
        return None
    arguments = _arguments(source.buffer[head.end() - 1 : end])
    source.take(end)
    return None if arguments is None else (head[1], arguments)


def _closing(source: Source, place: int) -> Waiting[int | None]:
    """The place after the bracket that closes the one before `place`."""
    depth, quote = 1, ""
    while True:
        while place < len(source.buffer):
            char = source.buffer[place]
            if quote:
                place += char == "\\"
                quote = "" if char == quote else quote
            elif char in "'\"":
                quote = char
            elif char in "([{":
                depth += 1
            elif char in ")]}":
                depth -= 1
            place += 1
            if depth == 0:
                return place
        if source.ended:
            return None
        yield None


def _arguments(text: str) -> dict[str, Any] | None:
    """The keyword arguments of a call without its name; None if they are no plain values."""
    try:
        with warnings.catch_warnings():  # of escapes that Python does not know
            warnings.simplefilter("ignore")
            call = ast.parse(f"f{text.strip()}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(each.arg is None for each in call.keywords):
            return None
        values = {str(each.arg): ast.literal_eval(_Words().visit(each.value)) for each in call.keywords}
        json.dumps(values, allow_nan=False)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    return values


class _Words(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.copy_location(ast.Constant(_WORDS[node.id]), node) if node.id in _WORDS else node
