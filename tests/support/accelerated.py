"""Daemons with emulated accelerators, put together in this process on a tiny model."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from isotherm.daemon.assembly import Assembly, assemble
from isotherm.daemon.config import Config
from isotherm.daemon.planning import PlanOptions, make_plan
from isotherm.placement.hardware_file import save_profile
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
def assembled(given: Config) -> Iterator[Assembly]:
    assembly = assemble(given, lambda stage, done, total: None)
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
    profile = model.parent / "machine.json"
    save_profile(with_cards(card, card), profile)
    made = make_plan(
        PlanOptions(model=model, hardware=str(profile), context=64, kv_cache="int16"), lambda stage, done, total: None
    )
    first, *others = (replace(layer, dense=CPU, experts=(CPU,) * 8) for layer in made.layers)
    return replace(made, layers=(replace(first, experts=tuple(experts)), *others), embed=CPU, head=CPU)
