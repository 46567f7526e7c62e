"""Engines on a CPU with emulated accelerators that rebalance, and traffic of two topics for them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from isotherm.daemon.client import EngineClient
from isotherm.daemon.engine import Engine
from isotherm.daemon.events import EventLog
from isotherm.daemon.history_keeper import HistoryKeeper
from isotherm.daemon.messages import Command, Submit
from isotherm.daemon.placement_history import PlacementHistory
from isotherm.daemon.rebalancing import Rebalancing
from isotherm.daemon.rebalancing_start import history_at_start, placement_at_start, start_rebalancing
from isotherm.daemon.request import SamplingParams
from isotherm.daemon.runner import DecoderRunner, load_runner
from isotherm.daemon.step import Chunk, StepPlan
from isotherm.experts.acceleration import Acceleration
from isotherm.experts.model import Model, open_model
from isotherm.experts.residency import Residency
from isotherm.gpu_kernels.emulated import Emulated
from isotherm.gpu_kernels.reference import TorchKernels
from isotherm.placement import files
from isotherm.placement.placed import Placement
from isotherm.placement.rebalance import MoveCosts, Rules, Swap
from isotherm.placement.shape import CPU
from support.engine_runs import make_engine, messages_of, running, tokens_of, until
from support.engines import engine as cpu_engine
from support.hybrid import LIMITS, emulated, placed, residency_of
from support.tiny import VOCAB_SIZE, write_gguf

EXPERTS = 16
EXPERT_BYTES = 21768  # packed
RULES = Rules(half_life=128, horizon=128, confidence=2.0, step_bytes=4 * EXPERT_BYTES)
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


class PatientKeeper(HistoryKeeper):
    """Lets a round begin in the step after it was decided, however long the disk takes."""

    def is_kept(self, number: int) -> bool:
        until(lambda: super(PatientKeeper, self).is_kept(number))
        return True


@dataclass
class Steps:
    """An attendant. Of each step that decoded, how many choices were of residents, how many there were, and what it
    took on the device's clock, what was done before it included."""

    runner: DecoderRunner
    residency: Residency
    hits: list[tuple[int, int]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    commands: dict[type[Command], Any] = field(default_factory=dict)
    _last: float = 0.0

    def between_steps(self, plan: StepPlan | None) -> None:
        now = self.residency.accelerators[0].now()
        if plan is not None and all(chunk.decodes for chunk in plan.chunks):
            choices = self.runner.choices()
            assert choices is not None
            hot = [self.residency.where[layer][ids] != CPU for layer, ids in enumerate(choices.ids)]
            self.hits.append((int(np.sum(hot)), choices.ids.size))
            self.seconds.append(now - self._last)
        self._last = now

    def rate(self, first: int, last: int | None = None) -> float:
        hits, choices = np.sum(self.hits[first:last], axis=0)
        return float(hits / choices)


@dataclass
class Rebalanced:
    """An engine that rebalances, and what is known of it."""

    engine: Engine
    runner: DecoderRunner
    residency: Residency
    rebalancing: Rebalancing
    steps: Steps
    known: PlacementHistory

    @property
    def client(self) -> EngineClient:
        return self.engine.client

    @property
    def events(self) -> EventLog:
        return self.engine.events


@contextmanager
def rebalanced(
    model: Model,
    accelerators: Sequence[Emulated],
    file: Path,
    planned: Placement | None = None,
    free_memory: Callable[[], int] | None = None,
) -> Iterator[Rebalanced]:
    """An engine under way that begins as the file says, or else as planned. free_memory: see `Acceleration`."""
    torch.set_num_threads(1)  # more would take turns with the CPU team
    events, names = EventLog(), [accelerator.name for accelerator in accelerators]
    keeper, fingerprint = PatientKeeper(file, events), model.checkpoint.fingerprint
    known = keeper.load(fingerprint)
    placement = placement_at_start(planned or half_resident(model), names, known, events)
    acceleration = Acceleration(
        accelerators=accelerators,
        kernels=[TorchKernels() for _ in accelerators],  # type: ignore[misc]
        placement=placement,
        note=events.record,
        free_memory=free_memory,
    )
    runner = load_runner(model, acceleration=acceleration, **LIMITS)
    residency = residency_of(runner)
    start = history_at_start(placement, names, fingerprint, known)
    shape = model.spec.num_layers, len(names)
    costs = MoveCosts(
        nbytes=np.full(shape[0], EXPERT_BYTES), saving_ms=np.full(shape, 1.0), transfer_ms=np.full(shape, 2.0)
    )
    rebalancing = start_rebalancing(runner, residency, placement, costs, RULES, keeper, start, events)
    steps = Steps(runner, residency)
    engine = make_engine(runner, events=events, attendants=[steps, rebalancing])  # type: ignore[arg-type]
    with keeper.keeping():
        with running(engine):
            yield Rebalanced(engine, runner, residency, rebalancing, steps, start)
        rebalancing.close()
    assert [accelerator.used_bytes for accelerator in accelerators] == [0] * len(accelerators)


def said_by_the_cpu(model: Model, topic: Sequence[int], count: int, tokens: int = 60) -> list[list[int]]:
    with running(make_engine(load_runner(model, **LIMITS))) as client:
        return ask(client, topic, count, tokens)


_DIES = """
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch
from support.rebalanced import die_at
moment, rounds, model, topic, file = sys.argv[1:]
die_at(moment, int(rounds), Path(model), [int(token) for token in topic.split()], Path(file))
"""


def dead_after(moment: str, rounds: int, model: Model, topic: Sequence[int], file: Path) -> int:
    """Have a process serve until `moment` of its round of that number, and be killed then; the rounds that it had
    written down."""
    arguments = (moment, str(rounds), str(model.checkpoint.path), " ".join(map(str, topic)), str(file))
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, "-c", _DIES, *arguments], env=variables, capture_output=True, text=True, timeout=240
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    return int(ended.stdout.split()[-1])


def die_at(moment: str, rounds: int, path: Path, topic: Sequence[int], file: Path) -> None:
    """Serve a topic, say how many rounds are written down, and be killed at the moment of one."""
    begun = [0]

    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def replace(part: Path, target: Path) -> None:
        if moment == "writing" and begun[0] == rounds - 1:
            kill()
        os.rename(part, target)
        sys.stdout.write(f"{json.loads(target.read_bytes())['made']}\n")
        sys.stdout.flush()

    def send(self: Residency, *arguments: Any) -> None:
        plain_send(self, *arguments)
        if begun[0] == rounds:
            kill()

    def swap(self: Residency, swaps: Sequence[Swap]) -> None:
        begun[0] += 1
        plain_swap(self, swaps)

    plain_send, plain_swap = Residency._send, Residency.swap
    with (
        patch.object(files.os, "replace", replace),
        patch.object(Residency, "_send", send),
        patch.object(Residency, "swap", swap),
        rebalanced(open_model(path), emulated(1 << 23), file) as served,
    ):
        while True:
            ask(served.client, topic, 3)
