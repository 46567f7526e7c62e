"""Whether an engine lives, and its first token."""

import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from isotherm.daemon.budget import StepBudget
from isotherm.daemon.engine import Engine
from isotherm.daemon.errors import EngineError
from isotherm.daemon.kv_cache import BlockPool
from isotherm.daemon.messages import Command
from isotherm.daemon.pulse import EnginesWatch, EngineWatch, FirstToken, Ping, Pulse
from isotherm.daemon.queue_books import QueueLimits
from isotherm.daemon.scheduler import Scheduler
from isotherm.daemon.status import EngineStats
from support.fake_runner import FakeRunner

PATIENCE_S = 20.0


@contextmanager
def running(runner: FakeRunner) -> Iterator[Engine]:
    scheduler = Scheduler(
        BlockPool(runner.num_blocks, runner.block_size),
        max_running=8,
        max_step_tokens=runner.max_step_tokens,
        max_context=runner.max_context,
        budget=StepBudget(1.0, runner.max_step_tokens),
    )
    limits = QueueLimits(max_queued=8, max_queued_tokens=1000)
    engine = Engine(runner, scheduler, limits, attendants=[Pulse(runner)])
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


def test_first_token_is_the_models_and_leaves_no_trace_in_the_books() -> None:
    runner = FakeRunner()
    with running(runner) as engine:
        token = engine.client.ask(FirstToken()).result(PATIENCE_S)
        assert 0 <= token < runner.vocab_size
        stats = engine.client.stats()
        assert (stats.steps, stats.generated_tokens, stats.kv_blocks_free) == (0, 0, runner.num_blocks)


def test_a_step_that_fails_is_the_answer() -> None:
    with running(FakeRunner(fail_calls=range(1, 2))) as engine, pytest.raises(RuntimeError, match="fail"):
        engine.client.ask(FirstToken()).result(PATIENCE_S)


def test_logits_that_are_no_numbers_are_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = FakeRunner()
    monkeypatch.setattr(runner, "execute", lambda plan: np.full((1, runner.vocab_size), np.nan, np.float32))
    with running(runner) as engine, pytest.raises(EngineError, match="first token cannot be drawn"):
        engine.client.ask(FirstToken()).result(PATIENCE_S)


def test_an_engine_that_goes_round_answers_a_ping() -> None:
    with running(FakeRunner()) as engine:
        assert engine.client.ask(Ping()).result(PATIENCE_S) is None


class Client:
    """What an EngineWatch sees of an engine."""

    def __init__(self, stats: EngineStats, *answers: "Future[Any]") -> None:
        self._stats, self._answers = stats, list(answers)

    def stats(self) -> EngineStats:
        return self._stats

    def ask(self, command: Command) -> "Future[Any]":
        return self._answers.pop(0)


def faults(watch: EngineWatch, client: Client, *times: float) -> list[str | None]:
    return [watch.fault(client, now) for now in times]  # type: ignore[arg-type]


def answered() -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_result(None)
    return future


def test_a_step_within_its_limit_is_no_fault_and_beyond_it_is() -> None:
    client = Client(EngineStats(state="ready", busy=True, heartbeat=100.0))
    told = faults(EngineWatch(30.0), client, 130.0, 131.0)
    assert told == [None, "a step of the model has been running for 31 s"]


def test_an_idle_engine_that_answers_is_well_however_long_it_is_idle() -> None:
    client = Client(EngineStats(state="ready"), answered(), answered(), answered())
    assert faults(EngineWatch(30.0, answer_limit=5.0), client, 0.0, 1000.0, 2000.0) == [None, None, None]


def test_an_idle_engine_that_does_not_answer_is_a_fault_after_its_limit() -> None:
    told = faults(EngineWatch(30.0, answer_limit=5.0), Client(EngineStats(state="ready"), Future()), 0.0, 5.0, 6.0)
    assert told == [None, None, "the idle engine has not answered for 6 s"]


@pytest.mark.parametrize("state", ["draining", "failed", "stopped"])
def test_an_engine_that_ends_is_no_fault(state: Any) -> None:
    client = Client(EngineStats(state=state, busy=True, heartbeat=0.0))
    assert faults(EngineWatch(1.0), client, 1000.0) == [None]


def test_of_several_engines_the_one_that_hangs_is_told_and_one_that_is_gone_is_let_go() -> None:
    well = Client(EngineStats(state="ready"), answered())
    hangs = Client(EngineStats(state="ready", busy=True, heartbeat=0.0))
    clients: list[Any] = [well, hangs]
    watch = EnginesWatch(lambda: clients, 30.0)
    assert watch.fault(1000.0) == "a step of the model has been running for 1000 s"
    gone = weakref.ref(hangs)
    clients.clear()
    del hangs
    assert gone() is None
    assert watch.fault(1001.0) is None
