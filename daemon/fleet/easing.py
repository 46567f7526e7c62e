"""What a fleet gives up while memory is short."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from ..errors import EngineError
from ..pressure import Measure
from ..unused_prefixes import DropPrefixes
from .fleet import Fleet
from .host import Hosted

LONGEST_PROMPT = 2048  # tokens


def measures_of(fleet: Fleet[Hosted[Any]]) -> Sequence[Measure]:
    """The mildest first."""

    def each() -> Iterator[Hosted[Any]]:
        return (hosted for _, hosted in fleet.ready())

    def drop() -> None:
        for hosted in each():
            if hosted.assembly.cache is not None:
                hosted.assembly.cache.stop_writing()
            if not hosted.assembly.config.accelerators:
                with suppress(EngineError):  # it is ending
                    hosted.assembly.engine.client.ask(DropPrefixes())

    def bound(longest: int | None) -> None:
        for hosted in each():
            hosted.assembly.engine.client.longest_prompt = longest

    return (
        Measure("prefixes that no request uses are forgotten, and packed weights are not stored", drop),
        Measure("idle models are unloaded, but for the last one used", fleet.unload_idle),
        Measure(
            f"prompts of more than {LONGEST_PROMPT} tokens are refused",
            lambda: bound(LONGEST_PROMPT),
            lambda: bound(None),
        ),
    )
