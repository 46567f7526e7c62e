"""Daemons with emulated accelerators, put together in this process on a tiny model."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from isotherm.daemon.assembly import Assembly, assemble
from isotherm.daemon.config import Config
from isotherm.daemon.planning import PlanOptions, make_plan
from isotherm.placement.hardware_file import save_profile
from isotherm.placement.placed import Placement
from isotherm.placement.plan import Plan
from isotherm.placement.shape import CPU
from support.engine_runs import messages_of, request, tokens_of
from support.plans import GIB, with_cards

CARD = "emulated:vram=1GiB,launch=0us,hop=0us"  # so that it pays even for a model as small as here
PROMPTS = [(3, 1, 4, 1, 5, 9, 2, 6), (2, 7)]


def config(model: Path, *accelerators: str, **changes: object) -> Config:
    given = {"threads": 2, "context": 64, "pack_cache": False, "max_step_tokens": 32, "max_running": 4}
    return Config(model=model, accelerators=accelerators, **given | changes)


@contextmanager
def assembled(given: Config, *, start: bool = True) -> Iterator[Assembly]:
    """start: the engine, else that is left to whoever asked."""
    assembly = assemble(given, lambda stage, done, total: None)
    if start:
        assembly.engine.start()
    try:
        yield assembly
    finally:
        assembly.engine.stop()


def answers(given: Config) -> list[list[int]]:
    with assembled(given) as assembly:
        mailboxes = [
            assembly.engine.client.submit(request(str(number), prompt, max_tokens=6))
            for number, prompt in enumerate(PROMPTS)
        ]
        return [tokens_of(messages_of(mailbox)) for mailbox in mailboxes]


def plan_of(model: Path, *, experts: list[int], card: int = GIB) -> Plan:
    """One with the first layer's experts where they are told to be, and all else on the CPU."""
    made = plan_on(model, (card, card))
    first, *others = (replace(layer, dense=CPU, experts=(CPU,) * 8) for layer in made.layers)
    return replace(made, layers=(replace(first, experts=tuple(experts)), *others), embed=CPU, head=CPU)


def plan_at(model: Path, placement: Placement, cards: Sequence[int], **options: Any) -> Plan:
    """One with everything where the placement has it."""
    made = plan_on(model, cards, **options)
    layers = tuple(
        replace(layer, dense=dense, experts=tuple(map(int, experts)), slots=0)
        for layer, dense, experts in zip(made.layers, placement.dense, placement.experts, strict=True)
    )
    return replace(made, layers=layers, embed=placement.embed, head=placement.head)


def plan_on(model: Path, cards: Sequence[int], **options: Any) -> Plan:
    """Of a machine with cards of so many bytes. options: of `PlanOptions`."""
    profile = model.parent / "machine.json"
    save_profile(with_cards(*cards), profile)
    given = {"context": 64, "kv_cache": "int16"} | options
    return make_plan(PlanOptions(model=model, hardware=str(profile), **given), lambda stage, done, total: None)
