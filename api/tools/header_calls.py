"""Calls whose name stands in a header before a JSON object of arguments."""

import re
from dataclasses import dataclass

from .calls import Calls
from .json_text import raw_value
from .source import Scan, Source, told

_MAX_HEADER = 400


@dataclass(frozen=True, slots=True)
class HeaderCalls:
    """header: matches all between the mark and the object, with a group `name`, and `id` where the format has ids.

    ends: what may follow the object, in this order. starts: marks of the format, which no broken object may run over.
    """

    header: re.Pattern[str]
    ends: tuple[str, ...] = ()
    starts: tuple[str, ...] = ()
    own_ids: bool = False

    def __call__(self, source: Source, calls: Calls) -> Scan[bool]:
        """Read what follows the mark. False if it is no call: what `source` has recorded then is text."""
        found = yield from source.until(("{", *self.starts), _MAX_HEADER)
        if found is None:
            return False
        head, mark = found
        match = self.header.fullmatch(head)
        if mark != "{" or match is None or not calls.known(match["name"]):
            if mark != "{":
                self._give_back(source, mark)
            return False
        self._give_back(source, mark)
        yield calls.begin(match["name"], match["id"] if self.own_ids else None)
        if not (yield from told(raw_value(source, (*self.ends, *self.starts)), calls.arguments)):
            calls.warn("broken_call", "the model wrote a call whose JSON is broken or cut")
        source.record()
        for end in self.ends:
            yield from source.space()
            yield from source.literal(end)
        source.record()
        return True

    @staticmethod
    def _give_back(source: Source, mark: str) -> None:
        taken = source.recorded
        source.record(taken[: -len(mark)])
        source.buffer = mark + source.buffer
