"""Manners: how the requests of a dialect name their model, and what a stream is told while it is loaded."""

from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel

from .body import parse
from .framing import OPENAI, Framing


class Head(BaseModel):
    """What has to be known of a request before its model is."""

    model: str | None = None
    stream: bool | None = None


@dataclass(frozen=True, slots=True)
class Manners:
    """framing: of what a stream is told before its dialect can speak, for a model's name. streams: requests that do not
    say whether they want a stream. plain: a model's id out of how clients of the dialect may also write it. any_type:
    whatever the content type says, the body is JSON."""

    framing: Callable[[str], Framing] = lambda _model: OPENAI
    streams: bool = False
    plain: Callable[[str], str] = str
    any_type: bool = False

    def read(self, raw: bytes) -> tuple[str, bool]:
        """The model that a body names, and whether it wants a stream. Raises InvalidRequestError."""
        head = parse(raw, Head)
        return head.model or "", self.streams if head.stream is None else head.stream


DEFAULT = Manners()
