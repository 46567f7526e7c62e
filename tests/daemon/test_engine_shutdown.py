"""The end of an engine, its audit and its heartbeat, on a fake model."""

import threading
import time

import pytest
from isotherm.daemon.errors import EngineError
from isotherm.daemon.messages import Failed, Finished
from support.engine_runs import (
    PATIENCE_S,
    GatedRunner,
    assert_nothing_left,
    make_engine,
    messages_of,
    request,
    running,
    until,
)
from support.fake_runner import FakeRunner


def test_drain_finishes_what_was_accepted_and_refuses_the_rest():
    runner = GatedRunner()
    engine = make_engine(runner, max_running=1)
    with running(engine) as client:
        boxes = [client.submit(request(f"r{i}")) for i in range(3)]
        runner.wait_for_step()
        drained: list[bool] = []
        drainer = threading.Thread(target=lambda: drained.append(engine.drain(PATIENCE_S)))
        drainer.start()
        until(lambda: engine.stats().state == "draining")
        with pytest.raises(EngineError, match="shutting down"):
            client.submit(request("late"))
        runner.let_go()
        drainer.join()
        assert drained == [True] and engine.stats().state == "stopped" and runner.closed
        assert [messages_of(box)[-1].reason for box in boxes] == ["length"] * 3


def test_stop_ends_running_waiting_and_untaken_requests():
    runner = GatedRunner()
    engine = make_engine(runner, max_running=1)
    engine.start()
    boxes = [client_box for client_box in (engine.client.submit(request(f"r{i}", max_tokens=200)) for i in range(3))]
    runner.wait_for_step()
    boxes.append(engine.client.submit(request("untaken", max_tokens=200)))
    stopper = threading.Thread(target=engine.stop)
    stopper.start()
    until(lambda: engine._stopping)
    runner.let_go()
    stopper.join()
    for box in boxes:
        assert "shutting down" in str(messages_of(box)[-1].error)
    assert_nothing_left(engine)


def test_a_drain_that_runs_out_of_time_stops():
    """[67]"""
    runner = GatedRunner()
    engine = make_engine(runner)
    engine.start()
    box = engine.client.submit(request(max_tokens=200))
    runner.wait_for_step()
    threading.Thread(target=lambda: (until(lambda: engine._stopping), runner.let_go())).start()
    assert engine.drain(timeout=0) is False
    assert isinstance(messages_of(box)[-1], Failed)


def test_a_step_that_hangs_cannot_hold_up_the_shutdown():
    """[67]"""
    runner = GatedRunner()
    engine = make_engine(runner)
    engine.start()
    box = engine.client.submit(request())
    runner.wait_for_step()
    engine.stop(timeout=0)
    assert "did not end" in str(messages_of(box)[-1].error)
    assert engine.stats().state == "failed" and engine.events.counts() == {"engine_abandoned": 1}
    runner.let_go()  # the late step finds nobody
    until(lambda: runner.closed)
    assert engine.stats().state == "failed"


def test_stop_before_start_ends_what_was_submitted():
    runner = FakeRunner()
    engine = make_engine(runner)
    box = engine.client.submit(request())
    engine.stop()
    assert isinstance(messages_of(box)[-1], Failed) and runner.closed


def test_stopping_twice_is_harmless():
    engine = make_engine()
    engine.start()
    engine.stop()
    engine.stop()
    assert engine.drain(0) and engine.stats().state == "stopped"


def test_a_runner_that_cannot_be_closed_is_an_event():
    class StuckRunner(FakeRunner):
        def close(self):
            raise OSError("a worker is stuck")

    engine = make_engine(StuckRunner())
    engine.start()
    engine.stop()
    assert engine.events.counts() == {"runner_close_failed": 1} and engine.stats().state == "stopped"


def test_the_audit_tells_of_a_leaked_block_and_the_engine_serves_on():
    engine = make_engine()
    with running(engine) as client:
        engine._scheduler.pool._refs[3] += 1
        messages_of(client.submit(request("a")))
        until(lambda: engine.stats().audit_failures == 1)
        assert "1 references but 0 owners" in engine.events.recent()[0].detail
        assert isinstance(messages_of(client.submit(request("b")))[-1], Finished)


def test_the_audit_ends_a_request_that_was_lost():
    runner = GatedRunner()
    engine = make_engine(runner)
    with running(engine) as client:
        box = client.submit(request())
        runner.wait_for_step()
        engine._scheduler.abort("a")  # behind the engine's back
        runner.let_go()
        assert "lost this request" in str(messages_of(box)[-1].error)
        assert engine.events.counts() == {"audit_failed": 1}


def test_an_idle_engine_does_nothing_and_a_busy_one_shows_its_age():
    runner = GatedRunner()
    engine = make_engine(runner)
    with running(engine) as client:
        until(lambda: engine.stats().heartbeat > 0)
        beat = engine.stats().heartbeat
        time.sleep(0.05)
        assert engine.stats().heartbeat == beat and engine.stats().step_age() == 0
        client.submit(request())
        runner.wait_for_step()
        assert engine.stats().busy and engine.stats().step_age(now=engine.stats().heartbeat + 9) == pytest.approx(9)
