"""Harmony: every message of an answer has a header, which says on which channel and to whom it is."""

import re
from collections.abc import Callable

from ..chat.events import ChatEvent, Reasoning, Text
from .calls import Calls
from .source import Scan, Source

START, CHANNEL, MESSAGE, END = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"
MARKS = (START, CHANNEL, MESSAGE, END, "<|call|>", "<|return|>", "<|constrain|>")
_ENDS = (END, "<|call|>", "<|return|>", START)
_HEADER = re.compile(
    r"\s*(?:assistant)?\s*(?:to=(?P<to>[^\s<]+))?\s*(?:<\|channel\|>\s*(?P<channel>analysis|commentary|final))?"
    r"\s*(?:to=(?P<also>[^\s<]+))?\s*(?:<\|constrain\|>)?\s*(?:json|code)?\s*"
)
_MAX_HEADER = 400


def harmony(source: Source, calls: Calls) -> Scan[None]:
    """Read an answer from the header of its first message on."""
    while True:
        yield from source.literal(START)
        source.record()
        found = yield from source.until((MESSAGE,), _MAX_HEADER)
        header = _HEADER.fullmatch(found[0]) if found else None
        recipient = (header["to"] or header["also"]) if header else None
        name = recipient.removeprefix("functions.") if recipient else ""
        if header is not None and recipient and calls.known(name):
            yield calls.begin(name)
            mark = yield from _arguments(source, calls)
        else:
            if header is None or recipient:
                calls.warn("broken_call", "the model wrote a message to no tool, or without a header")
                if source.recorded.strip() and not (header is None and found is None):
                    yield Text(source.recorded)
            thinks = header is not None and header["channel"] == "analysis"
            make: Callable[[str], ChatEvent] = Reasoning if thinks else Text
            mark = yield from source.upto(_ENDS, make, trim=calls.count > 0)
        if mark is None:
            return
        if mark == START:
            source.buffer = START + source.buffer
        yield from source.space()


def _arguments(source: Source, calls: Calls) -> Scan[str | None]:
    """All of the message is JSON; one without text is a call without arguments."""
    yield from source.space()
    scan = source.upto(_ENDS, calls.arguments, trim=True)
    empty = True
    while True:
        try:
            event = next(scan)
        except StopIteration as end:
            mark: str | None = end.value
            break
        empty = empty and event is None
        yield event
    if empty:
        yield calls.arguments("{}")
    return mark
