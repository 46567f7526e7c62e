"""Parts of JSON in a source."""

import json
from collections.abc import Sequence
from typing import Any

from .source import Pieces, Source, Waiting


def raw_value(source: Source, ends: Sequence[str] = ()) -> Pieces[bool]:
    """Take a JSON value, and give its text as it stands, in pieces. True where it was complete.

    ends: what cannot stand in a value outside its strings; before one of these a broken value ends.
    """
    first = yield from source.peek()
    if first in ("{", "["):
        return (yield from _nested(source, ends))
    if first == '"':
        text = yield from _string_text(source)
        if text is not None:
            yield text
        return text is not None
    text = yield from _scalar(source)
    if text:
        yield text
    return bool(text)


def whole_value(source: Source) -> Waiting[tuple[str, bool]]:
    """The text of a JSON value, and whether it was complete."""
    pieces = raw_value(source)
    text = ""
    while True:
        try:
            piece = next(pieces)
        except StopIteration as end:
            return text, bool(end.value)
        if piece is None:
            yield None
        else:
            text += piece


def string(source: Source) -> Waiting[str | None]:
    """Take a JSON string; None, and nothing taken, if there is none."""
    if (yield from source.peek()) != '"':
        return None
    text = yield from _string_text(source)
    value = None if text is None else parsed(text)
    return value if isinstance(value, str) else None


def parsed(text: str) -> Any:
    """The value of a JSON text, None if it is not one."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None


def _nested(source: Source, ends: Sequence[str]) -> Pieces[bool]:
    depth = 0
    in_string = escaped = False
    while True:
        place, over = 0, None
        while place < len(source.buffer) and over is None:
            char = source.buffer[place]
            if escaped:
                escaped = False
            elif in_string:
                escaped, in_string = char == "\\", char != '"'
            elif (rest := _end_at(source, place, ends)) is not None:
                if not rest:  # it may be one; wait
                    break
                over = False
                continue
            elif char == '"':
                in_string = True
            elif char in "{}[]":
                depth += 1 if char in "{[" else -1
                over = True if depth == 0 else None
            place += 1
        if place:
            yield source.take(place)
        if over is not None:
            return over
        if source.ended:
            return False
        yield None


def _end_at(source: Source, place: int, ends: Sequence[str]) -> bool | None:
    """Whether one of the ends stands here: True, False if it may yet turn out so, None if not."""
    rest = source.buffer[place : place + max(map(len, ends), default=0)]
    if any(rest.startswith(end) for end in ends):
        return True
    return False if not source.ended and any(end.startswith(rest) for end in ends) else None


def _string_text(source: Source) -> Waiting[str | None]:
    place = 1
    while True:
        while place < len(source.buffer):
            if source.buffer[place] == '"':
                return source.take(place + 1)
            place += 2 if source.buffer[place] == "\\" else 1
        if source.ended:
            return None
        yield None


def _scalar(source: Source) -> Waiting[str]:
    place = 0
    while True:
        while place < len(source.buffer):
            if source.buffer[place] in ",}] \t\r\n<":
                return source.take(place)
            place += 1
        if source.ended:
            return source.take(place)
        yield None
