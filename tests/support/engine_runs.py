"""A real engine on a fake model, for tests: runners that wait or fail, and what is read from mailboxes."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from isotherm.daemon.attendants import Attendant
from isotherm.daemon.budget import StepBudget
from isotherm.daemon.client import EngineClient
from isotherm.daemon.engine import Engine
from isotherm.daemon.events import EventLog
from isotherm.daemon.kv_cache import BlockPool
from isotherm.daemon.mailbox import Mailbox
from isotherm.daemon.messages import Failed, Finished, FromEngine, Submit, Token
from isotherm.daemon.queue_books import QueueLimits
from isotherm.daemon.request import SamplingParams
from isotherm.daemon.sampler import Sampler
from isotherm.daemon.scheduler import Scheduler
from isotherm.daemon.step import StepRecorder
from support.fake_runner import FakeRunner

PATIENCE_S = 20.0  # a limit for what must happen soon; never waited for when all is well


class GatedRunner(FakeRunner):
    """Each step waits for a permit; `entered` counts the steps that have begun."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.entered = threading.Semaphore(0)
        self.permits = threading.Semaphore(0)
        self.open = False

    def execute(self, plan):
        self.entered.release()
        if not self.open:
            self.permits.acquire()
        return super().execute(plan)

    def wait_for_step(self) -> None:
        assert self.entered.acquire(timeout=PATIENCE_S)

    def let_go(self) -> None:
        self.open = True
        self.permits.release()


class PoisonRunner(FakeRunner):
    """Gives NaN logits to the request named "bad"."""

    def execute(self, plan):
        logits = super().execute(plan)
        names = [chunk.request_id for chunk in plan.chunks if chunk.sample]
        for row, name in enumerate(names):
            if name == "bad":
                logits[row] = np.nan
        return logits


class WildSampler(Sampler):
    """Chooses a token beyond the vocabulary for the request with seed 13."""

    def sample(self, logits):
        return (logits.size, None) if self._params.seed == 13 else super().sample(logits)


def make_engine(
    runner: FakeRunner | None = None,
    *,
    max_failures: int = 3,
    max_running: int = 8,
    max_queued: int = 1000,
    recorder: StepRecorder | None = None,
    attendants: Sequence[Attendant] = (),
    events: EventLog | None = None,
) -> Engine:
    runner = runner or FakeRunner()
    scheduler = Scheduler(
        BlockPool(runner.num_blocks, runner.block_size, num_resident=runner.num_resident),
        max_running=max_running,
        max_step_tokens=runner.max_step_tokens,
        max_context=runner.max_context,
        budget=StepBudget(0.1, runner.max_step_tokens),
    )
    limits = QueueLimits(max_queued=max_queued, max_queued_tokens=100_000)
    return Engine(
        runner,
        scheduler,
        limits,
        events=events,
        max_failures=max_failures,
        recorder=recorder,
        attendants=attendants,
    )


@contextmanager
def running(engine: Engine) -> Iterator[EngineClient]:
    engine.start()
    try:
        yield engine.client
    finally:
        runner = engine._runner
        if isinstance(runner, GatedRunner):
            runner.let_go()
        engine.stop()


def request(name: str = "a", prompt: tuple[int, ...] = (1, 2, 3), eos: tuple[int, ...] = (), **sampling) -> Submit:
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 5, **sampling})
    return Submit(request_id=name, prompt=prompt, sampling=params, eos_token_ids=frozenset(eos))


def messages_of(mailbox: Mailbox) -> list[FromEngine]:
    """Everything up to the terminal message, which must be the last and the only one."""
    messages: list[FromEngine] = []
    while batch := mailbox.wait_batch(PATIENCE_S):
        messages += batch
    assert [isinstance(message, Finished | Failed) for message in messages] == [False] * (len(messages) - 1) + [True]
    assert all(message.request_id == mailbox.request_id for message in messages)
    return messages


def tokens_of(messages: list[FromEngine]) -> list[int]:
    return [message.token_id for message in messages if isinstance(message, Token)]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.001)


def assert_nothing_left(engine: Engine) -> None:
    until(lambda: not engine.stats().busy)
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.kv_blocks_free) == (0, 0, stats.kv_blocks)
    assert stats.audit_failures == 0
