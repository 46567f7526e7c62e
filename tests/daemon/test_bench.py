"""The bench's steps: what is run for each number."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, count, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from isotherm.daemon import bench
from isotherm.daemon.bench import BenchOptions, measure
from isotherm.daemon.bench_driver import Driver, pack_steps
from isotherm.daemon.config import ConfigError
from isotherm.daemon.memory import RESERVE, MemoryPlanError
from isotherm.daemon.paths import packed_folder
from isotherm.daemon.step import Chunk, StepPlan
from isotherm.experts.model import open_model
from isotherm.placement.trace_file import load_trace
from support.fake_runner import FakeRunner
from support.plans import with_cards
from support.tiny import write_gguf


class RecordingRunner(FakeRunner):
    """Keeps the plans; FakeRunner itself checks each one against the runner's contract."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.plans: list[StepPlan] = []

    def execute(self, plan: StepPlan) -> Any:
        self.plans.append(plan)
        return super().execute(plan)


def test_prompts_fill_steps_to_the_brim() -> None:
    chunks = [Chunk(str(i), list(range(10)), 0, list(range(i * 3, i * 3 + 3)), True) for i in range(3)]
    plans = pack_steps(chunks, max_tokens=16, block_size=4)
    assert [plan.num_tokens for plan in plans] == [16, 14]
    assert [[(c.request_id, c.start, len(c.tokens), c.sample) for c in plan.chunks] for plan in plans] == [
        [("0", 0, 10, True), ("1", 0, 6, False)],
        [("1", 6, 4, True), ("2", 0, 10, True)],
    ]
    assert [len(c.block_table) for plan in plans for c in plan.chunks] == [3, 2, 3, 3]


@pytest.mark.parametrize(("streams", "prompt"), [(1, 100), (4, 20)])
def test_prefill_computes_each_prompt_once(streams: int, prompt: int) -> None:
    runner = RecordingRunner(max_step_tokens=64)
    assert Driver(runner).prefill(streams, prompt) > 0
    assert runner.num_tokens == streams * prompt
    assert sum(chunk.sample for plan in runner.plans for chunk in plan.chunks) == streams


def test_streams_decode_together_after_their_prompts() -> None:
    runner = RecordingRunner()
    driver = Driver(runner)
    driver.prefill(4, 10)
    runner.plans.clear()
    driver.decode(4, 6, start=10)
    assert [[chunk.start for chunk in plan.chunks] for plan in runner.plans] == [[10 + i] * 4 for i in range(6)]


def test_tokens_are_the_same_in_each_run() -> None:
    first, second = RecordingRunner(), RecordingRunner()
    Driver(first).prefill(2, 8)
    Driver(second).prefill(2, 8)
    assert first.plans == second.plans


def scripted(monkeypatch: pytest.MonkeyPatch, seconds: Iterator[float], reads: Iterator[float]) -> None:
    """How long each decoding takes, and what plain reads find."""
    monkeypatch.setattr(Driver, "decode", lambda self, streams, gen, start: next(seconds))
    monkeypatch.setattr(bench, "PlainReads", lambda seating: SimpleNamespace(gb_s=lambda: next(reads)))


def calibrated(monkeypatch: pytest.MonkeyPatch, gb_s: float | None) -> None:
    monkeypatch.setattr(bench, "_calibrated_gb_s", lambda threads: gb_s)


OPTIONS = BenchOptions(threads=1, prompt=16, gen=4, streams=(1,))


@pytest.fixture(autouse=True)
def _steady_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else there might be more rounds."""
    monkeypatch.setattr(bench, "PlainReads", lambda seating: SimpleNamespace(gb_s=lambda: 30.0))
    calibrated(monkeypatch, None)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "tiny.gguf"
    write_gguf(path, "llama")
    return path


@pytest.mark.parametrize("change", [{"prompt": 513}, {"gen": 385}])
def test_more_tokens_than_the_context_are_refused(model: Path, change: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="context of 513; this model takes at most 512"):
        measure(model, replace(OPTIONS, **change), lambda *_: None)


def test_decoding_begins_after_the_context(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts, decode = [], Driver.decode

    def noted(self: Driver, streams: int, gen: int, start: int) -> float:
        starts.append((streams, start))
        return decode(self, streams, gen, start)

    monkeypatch.setattr(Driver, "decode", noted)
    measure(model, replace(OPTIONS, streams=(1, 2), rounds=2, context=200, pack_cache=False), lambda *_: None)
    assert starts[1:] == [(1, 200), (1, 200), (2, 200)] * 2
    with pytest.raises(ConfigError, match="context of 513; this model takes at most 512"):
        measure(model, replace(OPTIONS, context=509), lambda *_: None)


def test_a_model_that_does_not_fit_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=RESERVE + 1000))
    with pytest.raises(MemoryPlanError, match=r"only 0\.00 GiB of memory can be used"):
        measure(model, OPTIONS, lambda *_: None)


@pytest.mark.usefixtures("own_folders")
def test_packed_weights_are_kept_after_the_measurement_and_read_by_the_next(model: Path) -> None:
    def stages(options: BenchOptions) -> list[str]:
        seen: dict[str, None] = {}
        measure(model, options, lambda stage, done, total: seen.setdefault(stage))
        return list(seen)

    loading = ["testing kernels", "compiling kernels", "measuring"]
    assert stages(replace(OPTIONS, pack_cache=False)) == ["packing weights", *loading]
    assert not packed_folder().exists()
    assert stages(OPTIONS) == ["packing weights", *loading, "storing packed weights"]
    assert stages(OPTIONS) == ["reading packed weights", *loading]


def test_medians_of_all_rounds_count_where_none_was_as_usual(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, map(float, chain([9, 1, 2, 4], repeat(8))), map(float, count(100)))
    calibrated(monkeypatch, 1.0)
    options = replace(OPTIONS, streams=(), rounds=1, pack_cache=False)
    result = measure(model, options, lambda *_: None)
    assert [run.work for run in result.runs] == ["prefill", "decode"] * 4  # as often as it tries
    assert [run.read_gb_s for run in result.runs] == [(100 + 2 * n, 101 + 2 * n) for n in range(8)]
    decode = [run.tok_s for run in result.runs if run.work == "decode"]
    assert decode == [4 / 1, 4 / 2, 4 / 4, 4 / 8]  # the first run warms up
    assert result.decode_tok_s == result.of_all["decode"] == 1.5
    assert result.counted == {"prefill": 0, "decode": 0}
    assert result.read_gb_s == 108  # of 101, 103 .. 115
    read_by_a_token = result.decode_gb_s / result.decode_tok_s
    shares = [read_by_a_token * rate / (98.5 + 4 * n) for n, rate in enumerate(decode, 1)]
    assert result.memory_wall_share == pytest.approx((shares[1] + shares[2]) / 2)


def test_runs_count_where_memory_is_as_fast_as_when_calibrated(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fast = (30.0, 38.0), (34.0, 50.0)  # before and after one run; a fast one is enough
    reads = chain(*([slow, fast] + [slow, slow] + [slow, fast] * 2 + [slow, slow] * 2))
    scripted(monkeypatch, iter([9.0, 1.0, 2.0, 1.0, 1.0, 4.0, 8.0]), reads)
    calibrated(monkeypatch, 34.0)
    options = replace(OPTIONS, streams=(), rounds=5, pack_cache=False)
    result = measure(model, options, lambda *_: None)
    assert result.counted == {"prefill": 6, "decode": 3}  # so a sixth round was the last
    assert result.decode_tok_s == 4 / 4
    assert result.of_all["decode"] == (4 / 1 + 4 / 2) / 2
    assert (result.usual_gb_s, result.calibrated) == (34.0, True)


def test_what_was_read_most_of_the_time_is_usual_before_calibration(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, iter([9.0, 1.0, 2.0, 2.0, 4.0]), chain([9.0] * 4, repeat(30.0)))
    calibrated(monkeypatch, None)
    result = measure(model, replace(OPTIONS, streams=(), rounds=4, pack_cache=False), lambda *_: None)
    assert (result.usual_gb_s, result.calibrated) == (30.0, False)
    assert result.counted == {"prefill": 3, "decode": 3}
    assert (result.decode_tok_s, len(result.runs)) == (4 / 2, 8)


def test_what_the_machine_read_when_calibrated_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    profile = with_cards()
    monkeypatch.setattr(bench, "kept_profile", lambda threads: profile)
    threads = next(iter(profile.cpu.read_gb_s))
    assert bench._calibrated_gb_s(threads) == profile.cpu.read_gb_s[threads].value
    assert bench._calibrated_gb_s(threads + 1000) is None
    monkeypatch.setattr(bench, "kept_profile", lambda threads: None)
    assert bench._calibrated_gb_s(threads) is None


def test_where_the_measured_tokens_went_is_written(tmp_path: Path) -> None:
    write_gguf(tmp_path / "routed.gguf", "qwen3_moe")
    options = replace(OPTIONS, gen=8, streams=(1, 3), rounds=1, pack_cache=False, trace=tmp_path / "t.trace")
    measure(tmp_path / "routed.gguf", options, lambda *_: None)
    trace = load_trace(tmp_path / "t.trace", open_model(tmp_path / "routed.gguf").checkpoint.fingerprint)
    assert trace.phases["prefill"].tokens[0] == options.prompt
    decoded = set(trace.phases["decode"].tokens)
    assert len(decoded) == 1 and decoded.pop() % 3 == 0
    assert len(trace.starts) == 3  # sequences, so that steps of three streams can be replayed


def test_a_trace_of_a_model_without_experts_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no experts"):
        measure(model, replace(OPTIONS, trace=tmp_path / "t.trace"), lambda *_: None)


def test_a_trace_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "routed.gguf", "qwen3_moe")
    with pytest.raises(ConfigError, match="cannot be written"):
        measure(tmp_path / "routed.gguf", replace(OPTIONS, pack_cache=False, trace=tmp_path), lambda *_: None)
