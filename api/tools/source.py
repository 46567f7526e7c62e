"""Source: text that comes in pieces, for scripts that read it as if it were all there.

A script is a generator. It yields events, and None where it has to wait for more text. As it decides by the text alone,
never by where a piece ended, what it makes does not depend on the pieces.
"""

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from ..chat.events import ChatEvent

T = TypeVar("T")
Scan = Generator[ChatEvent | None, None, T]
Pieces = Generator[str | None, None, T]
Waiting = Generator[None, None, T]


class Source:
    """What has come and was not taken yet. ended: nothing more will come, so that nobody may wait.

    gap: the white space before the mark that `upto` found last. `recorded` is what was taken since `record`.
    """

    def __init__(self) -> None:
        self.buffer = ""
        self.ended = False
        self.gap = ""
        self._record: list[str] = []

    def take(self, count: int) -> str:
        """Take so many characters off the buffer."""
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        self._record.append(taken)
        return taken

    def record(self, first: str = "") -> None:
        """Forget what was taken so far."""
        self._record = [first] if first else []

    @property
    def recorded(self) -> str:
        """What was taken since `record`."""
        return "".join(self._record)

    def upto(self, marks: Sequence[str], make: Callable[[str], ChatEvent], *, trim: bool) -> Scan[str | None]:
        """Tell all text up to the first mark, and take that; None at the end of the text.

        White space before a mark is `gap`. trim: white space at the very end is dropped.
        """
        while True:
            found = first_of(self.buffer, marks)
            end = found[0] if found else len(self.buffer) - (0 if self.ended else _begun(self.buffer, marks))
            solid = len(self.buffer[:end].rstrip())
            free = end if self.ended and not found and not trim else solid
            if free:
                yield make(self.take(free))
                self.record()
            if found:
                self.gap = self.take(end - free)
                return self.take(len(found[1]))
            if self.ended:
                self.take(len(self.buffer))
                return None
            yield None

    def until(self, marks: Sequence[str], limit: int) -> Waiting[tuple[str, str] | None]:
        """Take a text of at most `limit` characters and the mark after it. None, and nothing taken, without that."""
        while (found := first_of(self.buffer[: limit + max(map(len, marks))], marks)) is None:
            if self.ended or len(self.buffer) > limit + max(map(len, marks)):
                return None
            yield None
        return self.take(found[0]), self.take(len(found[1]))

    def peek(self) -> Waiting[str]:
        """The next character, empty at the end."""
        while not self.buffer and not self.ended:
            yield None
        return self.buffer[:1]

    def space(self) -> Waiting[None]:
        """Take white space."""
        while True:
            self.take(len(self.buffer) - len(self.buffer.lstrip()))
            if self.buffer or self.ended:
                return
            yield None

    def literal(self, text: str) -> Waiting[bool]:
        """Take this text if it is what comes next."""
        while not self.ended and len(self.buffer) < len(text) and text.startswith(self.buffer):
            yield None
        if self.buffer.startswith(text):
            self.take(len(text))
            return True
        return False


class ScriptReader:
    """The reader that runs a script. prefix: text before the answer by which the script finds its state."""

    def __init__(self, script: Callable[[Source], Scan[None]], prefix: str = "") -> None:
        self._source = Source()
        self._run = script(self._source)
        if prefix:
            self.push(prefix)

    def push(self, text: str) -> Sequence[ChatEvent]:
        """What can be said now."""
        self._source.buffer += text
        return self._drain()

    def finish(self) -> Sequence[ChatEvent]:
        """All that was held back."""
        self._source.ended = True
        return self._drain()

    def _drain(self) -> list[ChatEvent]:
        events = []
        for event in self._run:
            if event is None:
                break
            events.append(event)
        return events


def first_of(text: str, marks: Sequence[str]) -> tuple[int, str] | None:
    """Place and name of the mark that begins first, the longest if several do."""
    found = [(place, -len(mark), mark) for mark in marks if (place := text.find(mark)) >= 0]
    return None if not found else (min(found)[0], min(found)[2])


def told(pieces: Pieces[T], make: Callable[[str], ChatEvent]) -> Scan[T]:
    """Pieces as events."""
    while True:
        try:
            piece = next(pieces)
        except StopIteration as end:
            value: T = end.value
            return value
        yield None if piece is None else make(piece)


def _begun(text: str, marks: Sequence[str]) -> int:
    """Length of the longest end of the text with which a mark may begin."""
    longest = min(len(text), max(map(len, marks), default=1) - 1)
    return next((n for n in range(longest, 0, -1) if any(mark.startswith(text[-n:]) for mark in marks)), 0)
