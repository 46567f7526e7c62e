"""Engines on a CPU with emulated accelerators that rebalance, and traffic of two topics for them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from isotherm.daemon.client import EngineClient
from isotherm.daemon.engine import Engine
from isotherm.daemon.events import EventLog
from isotherm.daemon.history_keeper import HistoryKeeper
from isotherm.daemon.messages import Submit
from isotherm.daemon.rebalancing import Rebalancing
from isotherm.daemon.rebalancing_start import history_at_start, placement_at_start, start_rebalancing
from isotherm.daemon.request import SamplingParams
from isotherm.daemon.runner import DecoderRunner, load_runner
from isotherm.daemon.step import Chunk, StepPlan
from isotherm.experts.acceleration import Acceleration
from isotherm.experts.model import Model
from isotherm.experts.residency import Residency
from isotherm.gpu_kernels.emulated import Emulated
from isotherm.gpu_kernels.reference import TorchKernels
from isotherm.placement.placed import Placement
from isotherm.placement.rebalance import MoveCosts, Rules
from isotherm.placement.shape import CPU
from numpy.typing import NDArray
from support.engine_runs import engine_of, messages_of, running, tokens_of
from support.engines import engine as cpu_engine
from support.hybrid import LIMITS, placed, residency_of
from support.tiny import VOCAB_SIZE, write_gguf

EXPERTS = 16
_BIAS = 1000.0  # of the tokens of a topic: no other can win


def write_model(path: Path) -> None:
    """Two layers of sixteen experts, two of them for each token."""
    write_gguf(path, "qwen3_moe", "Q8_0", num_experts=EXPERTS, num_experts_per_tok=2)


def topics(path: Path) -> tuple[list[int], list[int]]:
    """Tokens that go to experts of the lower half, and those that go to the upper one, when they stand alone."""
    with cpu_engine(path, **LIMITS) as runner:
        lower = []
        for token in range(VOCAB_SIZE):
            runner.execute(StepPlan((Chunk("a", [token], 0, [0], True),)))
            choices = runner.choices()
            assert choices is not None
            lower.append(float((choices.ids < EXPERTS // 2).mean()))
    return [n for n, share in enumerate(lower) if share == 1], [n for n, share in enumerate(lower) if share == 0]


def question(name: str, topic: Sequence[int], tokens: int) -> Submit:
    """Asks for so many tokens, all of a topic."""
    sampling = SamplingParams(
        temperature=0.0, max_tokens=tokens, logit_bias=tuple((token, _BIAS) for token in topic), ignore_eos=True
    )
    return Submit(request_id=name, prompt=tuple(topic[:3]), sampling=sampling, eos_token_ids=frozenset())


def ask(client: EngineClient, topic: Sequence[int], count: int, tokens: int = 60) -> list[list[int]]:
    """What is said to questions that are asked together."""
    mailboxes = [client.submit(question(f"q{n}", topic[n:], tokens)) for n in range(count)]
    return [tokens_of(messages_of(mailbox)) for mailbox in mailboxes]


def half_resident(model: Model) -> Placement:
    """The lower half of the experts on the first accelerator."""
    where = np.full(EXPERTS, CPU, np.int8)
    where[: EXPERTS // 2] = 0
    return placed(model.spec, [where.copy() for _ in range(model.spec.num_layers)])


def plain_costs(layers: int, devices: int, nbytes: int) -> MoveCosts:
    """Two uses on an accelerator pay for a move."""
    shape = (layers, devices)
    return MoveCosts(nbytes=np.full(layers, nbytes), saving_ms=np.full(shape, 1.0), transfer_ms=np.full(shape, 2.0))


@dataclass
class Hits:
    """An attendant: of each step that decoded, how many choices were of residents, and how many there were."""

    runner: DecoderRunner
    residency: Residency
    steps: list[tuple[int, int]] = field(default_factory=list)
    commands: dict = field(default_factory=dict)

    def between_steps(self, plan: StepPlan | None) -> None:
        if plan is None or not all(chunk.decodes for chunk in plan.chunks):
            return
        choices = self.runner.choices()
        assert choices is not None
        hot = [self.residency.where[layer][ids] != CPU for layer, ids in enumerate(choices.ids)]
        self.steps.append((int(np.sum(hot)), choices.ids.size))

    def rate(self, steps: slice) -> float:
        hits, all_of_them = np.sum(self.steps[steps], axis=0)
        return float(hits / all_of_them)


@dataclass
class Rebalanced:
    """An engine that rebalances, and what is known of it."""

    engine: Engine
    runner: DecoderRunner
    residency: Residency
    rebalancing: Rebalancing
    keeper: HistoryKeeper
    hits: Hits
    placement: Placement

    @property
    def client(self) -> EngineClient:
        return self.engine.client

    @property
    def events(self) -> EventLog:
        return self.engine.events


@contextmanager
def rebalanced(
    model: Model, accelerators: Sequence[Emulated], file: Path, rules: Rules, planned: Placement | None = None
) -> Iterator[Rebalanced]:
    """An engine under way that begins as the file says, or else as planned."""
    events, names = EventLog(), [accelerator.name for accelerator in accelerators]
    keeper, fingerprint = HistoryKeeper(file, events), model.checkpoint.fingerprint
    known, planned = keeper.load(fingerprint), planned or half_resident(model)
    placement = placement_at_start(planned, names, known, events)
    acceleration = Acceleration(
        accelerators=accelerators,  # type: ignore[arg-type]
        kernels=[TorchKernels() for _ in accelerators],
        placement=placement,
        note=events.record,
    )
    runner = load_runner(model, acceleration=acceleration, **LIMITS)
    residency = residency_of(runner)
    bank = residency.bank(0, 0)
    assert bank is not None
    costs = plain_costs(model.spec.num_layers, len(names), bank.nbytes // len(bank.experts))
    start = history_at_start(placement, names, fingerprint, known)
    rebalancing = start_rebalancing(runner, residency, placement, costs, rules, keeper, start, events)
    hits = Hits(runner, residency)
    engine = engine_of(runner, events=events, attendants=[hits, rebalancing])
    with keeper.keeping():
        with running(engine):
            yield Rebalanced(engine, runner, residency, rebalancing, keeper, hits, placement)
        rebalancing.close()
    assert [accelerator.used_bytes for accelerator in accelerators] == [0] * len(accelerators)


def expert_bytes(model: Model) -> int:
    """Of an expert's packed weights; all are alike."""
    from isotherm.experts.bank import parts_of
    from isotherm.experts.pack import pack

    return sum(matrix.nbytes for matrix in parts_of(pack(model), 0, 0))


def said_by_the_cpu(model: Model, topic: Sequence[int], count: int, tokens: int = 60) -> list[list[int]]:
    with running(engine_of(load_runner(model, **LIMITS))) as client:
        return ask(client, topic, count, tokens)


Floats = NDArray[np.float64]
