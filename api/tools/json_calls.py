"""Calls that are JSON objects of a name and arguments, alone or in a list."""

from dataclasses import dataclass

from ..chat.events import Text
from .calls import Calls
from .json_text import parsed, raw_value, string, whole_value
from .source import Scan, Source, told

_NAMES = ("name",)
_ARGUMENTS = ("arguments", "parameters")
_OTHERS = ("id", "type", "index")


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """end: what closes after the object or the list; empty if nothing does. between: what may part two objects."""

    end: str = ""
    between: tuple[str, ...] = ()

    def __call__(self, source: Source, calls: Calls) -> Scan[bool]:
        """Read what follows the mark. False if it is no call: what `source` has recorded then is text."""
        yield from source.space()
        if (yield from source.peek()) == "[":
            done = yield from self._list(source, calls)
        else:
            done = yield from self._row(source, calls)
        if not done or not self.end:
            return done
        yield from source.space()
        if not (yield from source.literal(self.end)):
            calls.warn("unclosed_call", f"the model did not write {self.end} after a call")
        return True

    def _row(self, source: Source, calls: Calls) -> Scan[bool]:
        """Objects one after another."""
        while True:
            if not (yield from self._call(source, calls)):
                return False
            source.record()
            yield from source.space()
            for text in self.between:
                if (yield from source.literal(text)):
                    yield from source.space()
            if not self.between or (yield from source.peek()) != "{":
                return True

    def _list(self, source: Source, calls: Calls) -> Scan[bool]:
        source.take(1)
        while True:
            yield from source.space()
            if not (yield from self._call(source, calls)):
                return False
            source.record()
            yield from source.space()
            if not (yield from source.literal(",")):
                return (yield from source.literal("]"))

    def _call(self, source: Source, calls: Calls) -> Scan[bool]:
        return (yield from _Object(source, calls, self.end).read())


class _Object:
    """One object on its way. Arguments that come before the name wait for it."""

    def __init__(self, source: Source, calls: Calls, end: str) -> None:
        self.source, self.calls = source, calls
        self.ends = (end,) if end else ()
        self.begun = False
        self.waiting: str | None = None  # arguments without a name yet
        self.argued = False

    def read(self) -> Scan[bool]:
        """False, with all of it recorded, if it is no call of a known tool."""
        complete = yield from self._members()
        if not self.begun:
            return False
        if complete and not self.argued:
            yield self.calls.arguments("{}")
        if not complete:
            self.calls.warn("broken_call", "the model wrote a call whose JSON is broken or cut")
            if self.source.recorded.strip():
                yield Text(self.source.recorded)
            self.source.record()
        return True

    def _members(self) -> Scan[bool]:
        source = self.source
        if not (yield from source.literal("{")):
            return False
        while True:
            yield from source.space()
            if not (yield from self._member()):
                return False
            yield from source.space()
            if (yield from source.literal("}")):
                return True
            if not (yield from source.literal(",")):
                return False

    def _member(self) -> Scan[bool]:
        source = self.source
        key = yield from string(source)
        yield from source.space()
        if key is None or not (yield from source.literal(":")):
            return False
        yield from source.space()
        if key == "function" and (yield from source.peek()) == "{":
            return (yield from self._members())
        if key in _NAMES or key == "function":
            return (yield from self._name())
        if key in _ARGUMENTS and not self.argued:
            return (yield from self._arguments())
        if key in _OTHERS:
            return (yield from whole_value(source))[1]
        return False

    def _name(self) -> Scan[bool]:
        text, complete = yield from whole_value(self.source)
        name = parsed(text)
        if not complete or self.begun or not self.calls.known(name):
            return False
        self.begun = True
        self.source.record()
        yield self.calls.begin(name)
        if self.waiting is not None:
            self.argued = True
            yield self.calls.arguments(self.waiting)
        return True

    def _arguments(self) -> Scan[bool]:
        first = yield from self.source.peek()
        if self.begun and first == "{":
            self.argued = True
            complete = yield from told(raw_value(self.source, self.ends), self.calls.arguments)
            self.source.record()
            return complete
        text, complete = yield from whole_value(self.source)
        text = _object_text(text) if complete else text
        if self.begun:
            self.argued = True
            self.source.record()
            yield self.calls.arguments(text)
        else:
            self.waiting = text
        return complete


def _object_text(text: str) -> str:
    """Arguments as an object: some models write it as a string, or null for none."""
    value = parsed(text)
    if isinstance(value, str) and isinstance(parsed(value), dict):
        return value
    return "{}" if text == "null" else text
