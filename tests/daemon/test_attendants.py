"""What is done between steps: when, with what answers, and what becomes of it when it fails."""

import threading
from dataclasses import dataclass

import pytest
from isotherm.daemon.errors import EngineError, InvalidRequestError
from isotherm.daemon.messages import Command
from isotherm.daemon.step import StepPlan
from support.engine_runs import (
    PATIENCE_S,
    GatedRunner,
    assert_nothing_left,
    make_engine,
    messages_of,
    request,
    running,
    tokens_of,
    until,
)
from support.fake_runner import FakeRunner


@dataclass(frozen=True)
class Double(Command):
    number: int


class Unknown(Command):
    pass


class Watcher:
    """Doubles numbers, and keeps what it was called with; `pauses` is what it gives while idle, then None."""

    def __init__(self, pauses: list[float] | None = None, fails: bool = False) -> None:
        self.pauses, self.fails = list(pauses or ()), fails
        self.calls: list[StepPlan | None] = []
        self.threads: set[str] = set()
        self.commands = {Double: self.double}

    def between_steps(self, plan: StepPlan | None) -> float | None:
        self.calls.append(plan)
        self.threads.add(threading.current_thread().name)
        if self.fails:
            raise ValueError("it broke")
        return self.pauses.pop(0) if plan is None and self.pauses else None

    def double(self, command: Double) -> dict[str, int]:
        self.threads.add(threading.current_thread().name)
        if command.number < 0:
            raise InvalidRequestError("it is negative", "number")
        return {"double": 2 * command.number}


def test_it_sees_each_step_and_each_rest():
    watcher = Watcher()
    with running(make_engine(attendants=[watcher])) as client:
        messages_of(client.submit(request(max_tokens=4)))
        until(lambda: len(watcher.calls) >= 6)
    steps = [plan for plan in watcher.calls if plan is not None]
    assert [plan.num_tokens for plan in steps] == [3, 1, 1, 1]
    assert watcher.calls[0] is None and watcher.calls[-1] is None
    assert watcher.threads == {"isotherm-engine"}


def test_it_is_called_again_while_idle_as_long_as_it_asks_for_it():
    watcher = Watcher([0.0, 0.001, 0.0])
    with running(make_engine(attendants=[Watcher(), watcher])) as client:
        until(lambda: len(watcher.calls) == 4)
        client.ask(Double(1)).result(PATIENCE_S)  # wakes it once
        until(lambda: len(watcher.calls) == 5)
    assert watcher.calls == [None] * 5


def test_a_command_is_answered_while_idle_and_under_load():
    watcher, runner = Watcher(), GatedRunner()
    with running(make_engine(runner, attendants=[Watcher(), watcher])) as client:
        assert client.ask(Double(4)).result(PATIENCE_S) == {"double": 8}
        mailbox = client.submit(request())
        runner.wait_for_step()
        asked = client.ask(Double(5))
        assert not asked.done()
        runner.let_go()
        assert asked.result(PATIENCE_S) == {"double": 10}
        assert len(tokens_of(messages_of(mailbox))) == 5
    assert watcher.threads == {"isotherm-engine"}


def test_a_refused_command_raises_for_whoever_asked():
    with running(make_engine(attendants=[Watcher()])) as client:
        with pytest.raises(InvalidRequestError, match="negative"):
            client.ask(Double(-1)).result(PATIENCE_S)
        with pytest.raises(InvalidRequestError, match="without accelerators"):
            client.ask(Unknown()).result(PATIENCE_S)
        assert client.ask(Double(1)).result(PATIENCE_S) == {"double": 2}


def test_one_that_fails_is_done_without_and_told():
    broken, watcher = Watcher(fails=True), Watcher()
    engine = make_engine(attendants=[broken, watcher])
    with running(engine) as client:
        *tokens, _ = messages_of(client.submit(request()))
        assert tokens_of(tokens) == FakeRunner().greedy((1, 2, 3), 5)
        until(lambda: len(watcher.calls) >= 6)
        assert_nothing_left(engine)
    assert len(broken.calls) == 1
    assert engine.events.counts() == {"attendant_stopped": 1}
    assert "Watcher: ValueError: it broke" in engine.events.recent()[0].detail


def test_what_one_that_failed_would_answer_is_refused_as_its_failure():
    broken = Watcher(fails=True)
    with running(make_engine(attendants=[broken])) as client:
        messages_of(client.submit(request()))
        until(lambda: len(broken.calls) == 1)
        with pytest.raises(EngineError, match="has failed and was stopped"):
            client.ask(Double(1)).result(PATIENCE_S)


def test_a_command_that_comes_too_late_fails():
    runner = GatedRunner()
    engine = make_engine(runner, attendants=[Watcher()])
    engine.start()
    engine.client.submit(request())
    runner.wait_for_step()
    asked = engine.client.ask(Double(1))
    engine.stop(timeout=0.01)  # the step does not end in time
    with pytest.raises(EngineError, match="did not end"):
        asked.result(PATIENCE_S)
    with pytest.raises(EngineError, match="shutting down"):
        engine.client.ask(Double(1))
    runner.let_go()
    until(lambda: runner.closed)


def test_what_nobody_waits_for_any_more_is_not_done():
    watcher, runner = Watcher(), GatedRunner()
    with running(make_engine(runner, attendants=[watcher])) as client:
        client.submit(request())
        runner.wait_for_step()
        done: list[int] = []
        watcher.commands[Double] = lambda command: done.append(command.number)
        asked, kept = client.ask(Double(1)), client.ask(Double(2))
        assert asked.cancel()
        runner.let_go()
        kept.result(PATIENCE_S)
    assert done == [2]


def test_what_was_begun_cannot_be_called_off():
    watcher, begun, go_on = Watcher(), threading.Event(), threading.Event()

    def slow(command: Double) -> int:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        return 2 * command.number

    watcher.commands[Double] = slow
    with running(make_engine(attendants=[watcher])) as client:
        asked = client.ask(Double(1))
        assert begun.wait(PATIENCE_S)
        called_off = asked.cancel()
        go_on.set()
        assert not called_off and asked.result(PATIENCE_S) == 2
