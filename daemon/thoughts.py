"""Thoughts: ends a model's reasoning where it has become as long as the client allows."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtLimit:
    """tokens: of reasoning at most. opening: the bytes with which an answer begins to reason; none where it begins amid
    reasoning. closing: those that end it, and closing_ids: the tokens that write them. token_bytes: of any token, by
    its name if it is a control token."""

    tokens: int
    opening: bytes
    closing: bytes
    closing_ids: tuple[int, ...]
    token_bytes: Callable[[int], bytes]


class Thoughts:
    """Of one request. What is due depends on the tokens of its answer alone, so on no batch and no preemption."""

    def __init__(self, limit: ThoughtLimit) -> None:
        self._limit = limit
        self._left = limit.tokens
        self._text = b""  # the beginning of the answer, then the end of the reasoning
        self._inside = not limit.opening
        self._over = False
        self._due = limit.closing_ids if self._inside and self._left <= 0 else ()

    @property
    def due(self) -> int | None:
        """The token that must come next, whatever the model says."""
        return self._due[0] if self._due else None

    def accept(self, token_id: int) -> None:
        """Take in a token of the answer."""
        if self._over:
            return
        if self._due:
            self._due = self._due[1:]
            self._over = not self._due
            return
        self._text += self._limit.token_bytes(token_id)
        if self._inside:
            self._left -= 1
        else:
            self._look_for_opening()
        if self._inside:
            self._look_for_closing()

    def _look_for_opening(self) -> None:
        text, opening = self._text.lstrip(), self._limit.opening
        self._inside = text.startswith(opening)
        self._over = not (self._inside or opening.startswith(text))
        if self._inside:
            self._text = text.removeprefix(opening)

    def _look_for_closing(self) -> None:
        self._over = self._limit.closing in self._text
        self._text = self._text[-len(self._limit.closing) :]
        if not self._over and self._left <= 0:
            self._due = self._limit.closing_ids
