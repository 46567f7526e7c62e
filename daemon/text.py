"""TextStream: a request's tokens as text, ended by stop strings wherever they fall between tokens."""

import math
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from .border_lengths import border_lengths
from .messages import Token


class Detokenizing(Protocol):
    """What TextStream needs of `daemon.tokenizer.Detokenizer`."""

    def push(self, token_id: int) -> str: ...

    def finish(self) -> str: ...


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer, and the tokens (with their logprobs) that it reports.

    starts: where each token's own text begins, in characters of the whole answer.
    """

    text: str
    tokens: tuple[Token, ...]
    starts: tuple[int, ...]


class TextStream:
    """Joins the text of tokens and holds back what may turn out to be a stop string.

    Held is exactly the longest end of the text that is the beginning of a stop string. The stop string that is complete
    first ends the text (the longest, if several end on the same character); it and all after it are dropped, or with
    `show_stop` all after it.

    Each token is reported at most once, in order, with the first released text at or after the place where its own text
    begins. So a token whose end belongs to the stop string is reported, one that begins inside it is not; a token
    without text, such as a part of a character, comes with the character. Without a stop, `finish` reports the rest.
    """

    def __init__(self, detokenizer: Detokenizing, stop: tuple[str, ...] = (), *, show_stop: bool = False) -> None:
        self._show_stop = show_stop
        self._detokenizer = detokenizer
        self._matchers = [_StopMatcher(text) for text in stop]
        self._held = ""
        self._released = 0  # characters given out so far
        self._waiting: deque[tuple[int, Token]] = deque()  # where each token's text begins
        self.stopped: str | None = None

    def push(self, token: Token) -> TextDelta | None:
        """Take a token; what can be released now, or None. After a stop tokens are ignored."""
        if self.stopped is not None:
            return None
        self._waiting.append((self._released + len(self._held), token))
        text = self._take(self._detokenizer.push(token.token_id))
        return self._delta(text, self._released) if text else None

    def finish(self) -> TextDelta:
        """The rest of the text and tokens when generation has ended; empty after a stop."""
        if self.stopped is not None:
            return TextDelta("", (), ())
        text = self._take(self._detokenizer.finish())
        if self.stopped is not None:
            return self._delta(text, self._released)
        text += self._held
        self._held = ""
        return self._delta(text, math.inf)

    def _take(self, piece: str) -> str:
        """Add a piece to the held text, look for stops in it and return what is free to go."""
        text = self._held + piece
        keep = self._match(len(self._held), piece) if self._matchers else 0
        end = len(text) - keep
        self._held = "" if self.stopped is not None else text[end:]
        self._released += end
        return text[:end]

    def _match(self, start: int, piece: str) -> int:
        """Advance the matchers over `piece`, at `start` in the text; how many characters at the end to keep back."""
        for position, char in enumerate(piece, start + 1):
            complete = [matcher.text for matcher in self._matchers if matcher.advance(char)]
            if complete:
                self.stopped = max(complete, key=len)
                return start + len(piece) - position + (0 if self._show_stop else len(self.stopped))
        return max(matcher.matched for matcher in self._matchers)

    def _delta(self, text: str, end: float) -> TextDelta:
        """A piece with the waiting tokens that begin before `end`."""
        placed = []
        while self._waiting and self._waiting[0][0] < end:
            placed.append(self._waiting.popleft())
        return TextDelta(text, tuple(token for _, token in placed), tuple(start for start, _ in placed))


class _StopMatcher:
    """Knuth-Morris-Pratt: how many characters of one stop string the text now ends with."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._fallback = border_lengths(text)

    def advance(self, char: str) -> bool:
        """Take the next character; True where it completes the stop string."""
        matched = self.matched
        while matched and self.text[matched] != char:
            matched = self._fallback[matched - 1]
        self.matched = matched + (self.text[matched] == char)
        return self.matched == len(self.text)
