"""Whether an engine lives, and its first token."""

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
from isotherm.daemon.pulse import EngineWatch, FirstToken, Ping, Pulse
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


def watch(stats: EngineStats, answers: list["Future[Any]"], **limits: float) -> EngineWatch:
    return EngineWatch(lambda: stats, lambda command: answers.pop(0), **limits)


def answered() -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_result(None)
    return future


def test_a_step_within_its_limit_is_no_fault_and_beyond_it_is() -> None:
    engine = watch(EngineStats(state="ready", busy=True, heartbeat=100.0), [], step_limit=30.0)
    assert engine.fault(130.0) is None
    assert engine.fault(131.0) == "a step of the model has been running for 31 s"


def test_an_idle_engine_that_answers_is_well_however_long_it_is_idle() -> None:
    engine = watch(EngineStats(state="ready"), [answered() for _ in range(3)], answer_limit=5.0)
    assert [engine.fault(now) for now in (0.0, 1000.0, 2000.0)] == [None, None, None]


def test_an_idle_engine_that_does_not_answer_is_a_fault_after_its_limit() -> None:
    engine = watch(EngineStats(state="ready"), [Future()], answer_limit=5.0)
    assert [engine.fault(now) for now in (0.0, 5.0)] == [None, None]
    assert engine.fault(6.0) == "the idle engine has not answered for 6 s"


@pytest.mark.parametrize("state", ["draining", "failed", "stopped"])
def test_an_engine_that_ends_is_no_fault(state: Any) -> None:
    engine = watch(EngineStats(state=state, busy=True, heartbeat=0.0), [], step_limit=1.0)
    assert engine.fault(1000.0) is None
