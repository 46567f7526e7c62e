"""Reasoning between tags at the beginning of an answer."""

from dataclasses import dataclass

from ..tools.source import Scan, Source
from .events import Reader, Reasoning


@dataclass(frozen=True, slots=True)
class ThinkTags:
    """What stands around a model's reasoning."""

    opening: str
    closing: str


TAGS = (
    ThinkTags("<think>", "</think>"),
    ThinkTags("[THINK]", "[/THINK]"),
    ThinkTags("<seed:think>", "</seed:think>"),
    ThinkTags("<|START_THINKING|>", "<|END_THINKING|>"),
)


def detect_tags(template: str) -> ThinkTags | None:
    """The tags that a chat template knows."""
    return next((tags for tags in TAGS if tags.closing in template), None)


def think(source: Source, tags: ThinkTags, inner: Reader) -> Scan[None]:
    """Reasoning, if the answer begins with the opening tag; the rest is the inner reader's.

    White space beside the tags is not told.
    """
    source.record()
    yield from source.space()
    if (yield from source.literal(tags.opening)):
        yield from source.space()
        yield from source.upto((tags.closing,), Reasoning, trim=True)
        yield from source.space()
    elif source.recorded:
        yield from inner.push(source.recorded)
    while True:
        if source.buffer:
            yield from inner.push(source.take(len(source.buffer)))
            source.record()
        if source.ended:
            yield from inner.finish()
            return
        yield None
