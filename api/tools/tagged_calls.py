"""Calls whose every parameter stands between tags of its own."""

import re
from dataclasses import dataclass

from ..chat.events import Text
from .calls import Calls
from .json_text import parsed
from .source import Scan, Source, Waiting
from .typed_value import escaped, is_text, quoted, value_text

_MAX_NAME = 400


@dataclass(frozen=True, slots=True)
class TaggedCalls:
    """name_end: what follows the name; given back where it is one of `tags`. key: the tags around a parameter's name.

    value: what opens a value after the key, empty where the key's end does, and what closes it. end: closes the call.
    opening: stands before the name, after the mark. closing: may follow the end. padded: a line break stands on either
    side of a value. key_form: of what stands between the tags of a key, with a group `key`; and `text`, "true" or
    "false", where the format says whether a value is a string.
    """

    name_end: tuple[str, ...]
    key: tuple[str, str]
    value: tuple[str, str]
    end: str
    opening: str = ""
    closing: str = ""
    padded: bool = False
    key_form: re.Pattern[str] = re.compile(r'\s*"?(?P<key>[^"]+?)"?\s*(?P<text>(?!))?')

    def __call__(self, source: Source, calls: Calls) -> Scan[bool]:
        """Read what follows the mark. False if it is no call: what `source` has recorded then is text."""
        if self.opening:
            yield from source.space()
            if not (yield from source.literal(self.opening)):
                return False
        found = yield from source.until(self.name_end, _MAX_NAME)
        name = found[0].strip().strip('"') if found else ""
        if found is None or not calls.known(name):
            return False
        if found[1] in (self.key[0], self.end):
            source.buffer = found[1] + source.buffer
        yield calls.begin(name)
        source.record()
        yield from self._parameters(source, calls, name)
        if self.closing:
            yield from source.space()
            yield from source.literal(self.closing)
        source.record()
        return True

    def _parameters(self, source: Source, calls: Calls, name: str) -> Scan[None]:
        first = True
        while True:
            yield from source.space()
            source.record()
            if (yield from source.literal(self.end)):
                yield calls.arguments("{}" if first else "}")
                return
            key = yield from self._key(source)
            if key is None:
                if not (source.ended and not source.buffer):  # one that is cut stays open
                    yield calls.arguments("{}" if first else "}")
                if source.recorded.strip():
                    yield Text(source.recorded)
                calls.warn("broken_call", "the model wrote a call whose parameters are broken or cut")
                return
            yield calls.arguments(("{" if first else ", ") + quoted(key["key"]) + ": ")
            first = False
            schema = (calls.parameters[name].get("properties") or {}).get(key["key"])
            told = key.groupdict().get("text")
            text = is_text(schema) if told is None else told == "true"
            yield from (self._text if text else self._typed)(source, calls, schema)

    def _key(self, source: Source) -> Waiting[re.Match[str] | None]:
        if not (yield from source.literal(self.key[0])):
            return None
        found = yield from source.until((self.key[1],), _MAX_NAME)
        key = self.key_form.fullmatch(found[0]) if found else None
        if key is None:
            return None
        if self.value[0]:
            yield from source.space()
            if not (yield from source.literal(self.value[0])):
                return None
        if self.padded:
            yield from source.literal("\n")
        return key

    def _text(self, source: Source, calls: Calls, _schema: object) -> Scan[None]:
        """A string, told as it comes."""
        yield calls.arguments('"')
        close = ("\n" if self.padded else "") + self.value[1]
        while (place := source.buffer.find(self.value[1])) < 0:
            free = len(source.buffer) - (0 if source.ended else len(close) - 1)
            if free > 0:
                yield calls.arguments(escaped(source.take(free)))
            if source.ended:
                calls.warn("broken_call", "the model wrote a call whose parameters are broken or cut")
                return
            yield None
        text = source.take(place)
        source.take(len(self.value[1]))
        yield calls.arguments(escaped(text.removesuffix("\n") if self.padded else text) + '"')

    def _typed(self, source: Source, calls: Calls, schema: object) -> Scan[None]:
        """A value of another type, which can be told only when it is complete."""
        while (place := source.buffer.find(self.value[1])) < 0:
            if source.ended:
                yield calls.arguments(source.take(len(source.buffer)))
                return
            yield None
        text = source.take(place)
        source.take(len(self.value[1]))
        yield calls.arguments(value_text(text, schema, parsed(text.strip()), padded=self.padded))
