"""An engine that hangs or has died: how that is told, and how a model goes on with another engine."""

import threading
from pathlib import Path

import pytest
from isotherm.daemon.config import Config
from isotherm.daemon.errors import EngineError
from isotherm.daemon.events import EventLog
from isotherm.daemon.fleet.host import Hosted, ModelLoader
from isotherm.daemon.memory import MemoryPlanError
from isotherm.daemon.messages import Failed, Finished, FromEngine
from isotherm.daemon.queue_books import QueueLimits
from isotherm.daemon.step import StepPlan
from isotherm.daemon.wedge import ailment_of, dump_threads
from support import tiny
from support.engine_runs import GatedRunner, make_engine, messages_of, request, running, until
from support.fake_runner import FakeRunner
from support.serving import make_submit


def test_a_step_that_takes_too_long_is_an_ailment_and_its_requests_fail_at_once() -> None:
    runner = GatedRunner()
    engine = make_engine(runner)
    engine.start()
    boxes = [engine.client.submit(request(f"r{number}")) for number in range(2)]
    runner.wait_for_step()
    assert ailment_of(engine, 1000.0) is None
    reason = ailment_of(engine, 0.0)
    assert reason is not None
    assert "has been running for 0 s" in reason
    engine.abandon(reason)
    assert all(str(messages_of(box)[-1].error) == reason for box in boxes)
    with pytest.raises(EngineError, match="has been running"):
        engine.client.submit(request("late"))
    runner.let_go()
    until(lambda: runner.closed)


def test_an_engine_that_has_given_up_is_ill() -> None:
    runner = FakeRunner(fail_calls=range(1, 100))
    engine = make_engine(runner)
    with running(engine) as client:
        for number in range(3):
            messages_of(client.submit(request(f"r{number}")))
        until(lambda: engine.stats().state == "failed")
        assert "3 steps in a row failed" in str(ailment_of(engine, 1000.0))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_has_ended_is_an_ailment() -> None:
    class Deadly(FakeRunner):
        def execute(self, plan: StepPlan) -> None:  # type: ignore[override]
            raise SystemExit

    engine = make_engine(Deadly())
    engine.start()
    box = engine.client.submit(request())
    assert isinstance(messages_of(box)[-1], Failed)
    until(lambda: not engine.alive)
    assert ailment_of(engine, 1000.0) is not None


def test_the_dump_says_what_every_thread_does(capfd: pytest.CaptureFixture[str]) -> None:
    gate = threading.Event()

    def waits_for_the_gate() -> None:
        gate.wait(20)

    thread = threading.Thread(target=waits_for_the_gate)
    thread.start()
    dump_threads("a step hangs")
    gate.set()
    thread.join()
    assert "waits_for_the_gate" in capfd.readouterr().err


@pytest.fixture
def hosted(tmp_path: Path, own_folders: None, thawed: None) -> Hosted[str]:
    path = tmp_path / "tiny.gguf"
    tiny.write_gguf(path, "mixtral", "Q4_0", max_position_embeddings=512)
    config = Config(model=path, threads=2, kv_gib=0.02, context=512, step_limit_s=1.0)
    loader = ModelLoader({"tiny": config}, EventLog(), lambda _, assembly: f"of {id(assembly)}")
    return loader.load("tiny", lambda stage, done, total: None)


def complete(hosted: Hosted[str], name: str) -> list[FromEngine]:
    return messages_of(hosted.assembly.engine.client.submit(make_submit(name, [1, 2, 3], max_tokens=6)))


def hang_in(hosted: Hosted[str]) -> threading.Event:
    """Have steps wait for what is given back."""
    gate, real = threading.Event(), hosted.assembly.runner.execute

    def hang(plan: StepPlan) -> object:
        gate.wait(20)
        return real(plan)

    hosted.assembly.runner.execute = hang  # type: ignore[method-assign, assignment]
    return gate


def test_a_model_goes_on_over_the_same_weights(hosted: Hosted[str]) -> None:
    before, service = complete(hosted, "a"), hosted.service
    runner, gate = hosted.assembly.runner, hang_in(hosted)
    engine = hosted.assembly.engine
    box = engine.client.submit(make_submit("b", [1, 2, 3], max_tokens=6))
    until(lambda: hosted.ailment() is not None)
    hosted.abandon("it hangs")
    assert isinstance(messages_of(box)[-1], Failed)
    hosted.restart()
    assert hosted.ailment() is None
    assert hosted.service != service
    assert hosted.assembly.runner is not runner
    assert hosted.assembly.runner._weights is runner._weights
    after = complete(hosted, "a")
    assert isinstance(after[-1], Finished)
    assert after == before
    gate.set()  # what hung comes back and finds nobody, nor does it do harm
    until(lambda: not engine.alive)
    assert complete(hosted, "a") == before
    hosted.close()


def test_what_hangs_is_not_waited_for_when_its_model_is_closed(hosted: Hosted[str]) -> None:
    gate, engine = hang_in(hosted), hosted.assembly.engine
    box = engine.client.submit(make_submit("a", [1, 2, 3], max_tokens=6))
    until(lambda: hosted.ailment() is not None)
    hosted.abandon("it hangs")
    hosted.close()
    assert engine.alive
    assert isinstance(messages_of(box)[-1], Failed)
    gate.set()
    until(lambda: not engine.alive)


def test_a_restart_keeps_how_much_may_wait(hosted: Hosted[str]) -> None:
    limits = QueueLimits(max_queued=5, max_queued_tokens=50)
    hosted.limit_queue(limits)
    for _ in range(2):
        assert hosted.assembly.engine._inbox._queue.limits == limits
        hosted.abandon("it hangs")
        hosted.restart()
    hosted.close()


def test_without_memory_for_another_cache_there_is_no_restart(
    hosted: Hosted[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isotherm.daemon.assembly.free_memory", lambda: 1 << 20)
    hosted.abandon("it hangs")
    with pytest.raises(MemoryPlanError, match="beside the old one"):
        hosted.restart()
    hosted.close()
