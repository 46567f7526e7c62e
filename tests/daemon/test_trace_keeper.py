"""Recorded routing outlives the daemon: in one file, beside what other daemons write, and whatever the file is."""

import threading
from pathlib import Path

import numpy as np
import pytest
from isotherm.daemon.assembly import assemble
from isotherm.daemon.config import Config
from isotherm.daemon.events import EventLog
from isotherm.daemon.paths import routing_file
from isotherm.daemon.trace_keeper import TraceKeeper
from isotherm.experts.model import open_model
from isotherm.placement.trace_file import load_trace, save_trace
from support.engine_runs import messages_of, request, until
from support.tiny import write_gguf
from support.traces import FINGERPRINT, GivenRecorder, decoded


def decode_tokens(path: Path) -> float:
    return float(load_trace(path).phases["decode"].tokens[0])


def keeper_of(recorder: GivenRecorder, path: Path, events: EventLog | None = None, **options: float) -> TraceKeeper:
    return TraceKeeper(recorder, path, EventLog() if events is None else events, **options)  # type: ignore[arg-type]


def test_what_was_recorded_is_in_the_file_at_the_end(tmp_path: Path) -> None:
    recorder, path = GivenRecorder(), tmp_path / "state" / "trace.npz"
    with keeper_of(recorder, path).keeping():
        recorder.give(decoded(40))
        assert not path.exists()  # once a minute is enough
    assert decode_tokens(path) == 40
    assert load_trace(path, FINGERPRINT).sample.shape == (40, 3, 2)


def test_it_is_saved_while_the_daemon_runs(tmp_path: Path) -> None:
    recorder, path = GivenRecorder(), tmp_path / "trace.npz"
    with keeper_of(recorder, path, every_s=0.01).keeping():
        recorder.give(decoded(40))
        until(path.exists)


def test_nothing_recorded_leaves_no_file(tmp_path: Path) -> None:
    with keeper_of(GivenRecorder(), tmp_path / "trace.npz").keeping():
        pass
    assert not list(tmp_path.glob("*.npz"))


def test_old_traffic_counts_half_after_the_half_life(tmp_path: Path) -> None:
    recorder, path = GivenRecorder(), tmp_path / "trace.npz"
    keeper = keeper_of(recorder, path, half_life=100)
    for _ in range(2):
        recorder.give(decoded(100))
        keeper.save()
    assert decode_tokens(path) == pytest.approx(150)


def test_several_daemons_of_one_model_lose_nothing(tmp_path: Path) -> None:
    path, rounds = tmp_path / "trace.npz", 5

    def save() -> None:
        recorder = GivenRecorder()
        keeper = keeper_of(recorder, path, half_life=1e15)
        for _ in range(rounds):
            recorder.give(decoded(20))
            keeper.save()

    threads = [threading.Thread(target=save) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert decode_tokens(path) == pytest.approx(3 * rounds * 20)


def test_what_cannot_be_written_is_told_once_and_written_later(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.write_text("in the way")
    recorder, events = GivenRecorder(), EventLog()
    keeper = keeper_of(recorder, folder / "trace.npz", events, half_life=1e15)
    for _ in range(3):
        recorder.give(decoded(20))
        keeper.save()
    assert events.counts() == {"routing_not_kept": 1}
    assert "trace.npz" in events.recent()[0].detail
    folder.unlink()
    keeper.save()
    assert decode_tokens(folder / "trace.npz") == pytest.approx(60)


@pytest.mark.parametrize("fault", ["damaged", "of another model"])
def test_a_file_that_cannot_be_added_to_is_put_aside(fault: str, tmp_path: Path) -> None:
    path, aside = tmp_path / "trace.npz", tmp_path / "trace.npz.rejected"
    if fault == "damaged":
        path.write_bytes(b"no archive")
    else:
        save_trace(path, decoded(40, fingerprint="cd" * 32))
    before = path.read_bytes()
    recorder, events = GivenRecorder(), EventLog()
    keeper = keeper_of(recorder, path, events)
    recorder.give(decoded(20))
    keeper.save()
    assert decode_tokens(path) == 20
    assert aside.read_bytes() == before
    assert events.counts() == {"routing_trace_rejected": 1}
    assert str(aside) in events.recent()[0].detail


@pytest.mark.usefixtures("own_folders")
def test_the_routing_of_an_assembled_engine_outlives_it(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", "mixtral", "Q4_0")
    config = Config(model=tmp_path / "tiny.gguf", threads=1, context=64, pack_cache=False)
    path = routing_file(open_model(tmp_path / "tiny.gguf").checkpoint.fingerprint)
    for start in (1, 2):
        assembly = assemble(config, lambda stage, done, total: None)
        assert assembly.keeper is not None
        with assembly.keeper.keeping():
            assembly.engine.start()
            try:
                messages_of(assembly.engine.client.submit(request("a", (1, 2, 3, 4), max_tokens=6, ignore_eos=True)))
            finally:
                assembly.engine.stop()
        trace = load_trace(path)
        # The last token is not computed; in the last layer a prompt has only its last token.
        np.testing.assert_allclose(trace.phases["decode"].tokens, [5 * start] * 2, rtol=1e-4)
        np.testing.assert_allclose(trace.phases["prefill"].tokens, [4 * start, start], rtol=1e-4)


@pytest.mark.usefixtures("own_folders")
def test_a_model_without_experts_keeps_no_routing(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", "llama", "Q4_0")
    config = Config(model=tmp_path / "tiny.gguf", threads=1, context=64, pack_cache=False)
    assembly = assemble(config, lambda stage, done, total: None)
    assembly.engine.stop()
    assert assembly.keeper is None
