"""Choosing the number of threads by measurement."""

import json
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from isotherm.cpu_kernels.seating import Seating
from isotherm.cpu_kernels.topology import Core, Topology
from isotherm.daemon import bench, bench_threads
from isotherm.daemon.bench_threads import ThreadPoint, best_threads, measure_curve, thread_counts
from isotherm.daemon.cli.app import app
from isotherm.daemon.cli.bench_tables import curve_table
from isotherm.daemon.runner import load_runner
from isotherm.daemon.step import Chunk, StepPlan
from isotherm.experts.model import open_model
from rich.console import Console
from support.tiny import write_gguf
from typer.testing import CliRunner


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("threads") / "tiny.gguf"
    write_gguf(path, "qwen3_moe")
    return path


def cores(count: int, each: int = 1, nodes: int = 1) -> Topology:
    """So many cores of `each` CPUs, dealt out to memory nodes."""
    return Topology(tuple(Core(tuple(range(each * i, each * i + each)), i % nodes) for i in range(count)))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores of two threads each, 10 GB/s for every one."""
    monkeypatch.setattr(bench, "read_topology", lambda: cores(2, 2))
    monkeypatch.setattr(bench_threads, "read_gb_s", lambda seating: 10.0 * seating.threads)
    monkeypatch.setattr(bench, "PlainReads", lambda seating: SimpleNamespace(gb_s=lambda: 10.0 * seating.threads))


@pytest.mark.parametrize(
    ("topology", "counts"),
    [(Topology(()), [1]), (cores(1), [1]), (cores(2, 2), [1, 2, 3, 4]), (cores(16), list(range(1, 17)))],
)
def test_every_number_of_threads_is_tried(topology: Topology, counts: list[int]) -> None:
    assert thread_counts(topology) == counts


@pytest.mark.parametrize(("physical", "each", "nodes"), [(17, 1, 1), (24, 2, 1), (61, 2, 1), (128, 2, 2), (90, 2, 2)])
def test_large_machines_are_thinned(physical: int, each: int, nodes: int) -> None:
    counts = thread_counts(cores(physical, each, nodes))
    assert counts == sorted(set(counts))
    assert {*range(1, 17), physical // nodes, physical, each * physical} <= set(counts)
    assert len(counts) <= 36 and counts[-1] == each * physical


def test_fast_cores_alone_are_tried() -> None:
    slow = tuple(Core((cpu,), fast=False) for cpu in range(46, 86))
    assert 23 in thread_counts(Topology((*cores(23, 2).cores, *slow)))


def test_the_curve_has_a_point_for_each_number(machine: None) -> None:
    curve = measure_curve(lambda threads: 100.0 - threads, Seating(1, cores(2, 2)), lambda *_: None)
    assert curve == (
        ThreadPoint(1, 99.0, 10.0, True),
        ThreadPoint(2, 98.0, 20.0, True),
        ThreadPoint(3, 97.0, 30.0, False),
        ThreadPoint(4, 96.0, 40.0, False),
    )


def test_the_curve_says_how_many_memory_nodes_have_threads(machine: None) -> None:
    curve = measure_curve(lambda threads: 1.0, Seating(2, cores(4, nodes=2)), lambda *_: None)
    assert [(point.threads, point.nodes, point.read_gb_s) for point in curve] == [
        (1, 1, 10.0), (2, 2, 20.0), (3, 2, 30.0), (4, 2, 40.0)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rates", "best"), [([10, 20, 15], 2), ([10, 19.7, 20], 2), ([10, 19, 20], 3), ([20, 20, 20], 1)]
)
def test_the_fewest_threads_as_fast_as_any_are_chosen(rates: list[float], best: int) -> None:
    assert best_threads([ThreadPoint(i + 1, rate, 1.0, True) for i, rate in enumerate(rates)]) == best


def test_auto_measures_with_what_the_curve_has_chosen(
    model: Path, machine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "_decode_rate", lambda runner, threads, tokens: {3: 9.0}.get(threads, 1.0))
    options = bench.BenchOptions(threads=None, prompt=8, gen=2, streams=(1,), pack_cache=False)
    result = bench.measure(model, options, lambda *_: None)
    assert (result.threads, result.read_gb_s) == (3, 30.0)
    assert [point.decode_tok_s for point in result.thread_curve] == [1.0, 1.0, 9.0, 1.0]


def test_json_has_the_curve_only_if_asked(model: Path, machine: None) -> None:
    sizes = ("bench", str(model), "--prompt", "8", "--gen", "2", "--streams", "1", "--no-pack-cache", "--json")
    auto, fixed = (CliRunner().invoke(app, [*sizes, "--threads", threads]) for threads in ("auto", "2"))
    curve = json.loads(auto.stdout)["thread_curve"]
    assert [(point["threads"], point["physical"]) for point in curve] == [(1, True), (2, True), (3, False), (4, False)]
    assert all(point["decode_tok_s"] > 0 for point in curve)
    assert "thread_curve" not in json.loads(fixed.stdout)


@pytest.mark.parametrize("threads", ["0", "x", "-1", "1025", "2.5"])
def test_a_wrong_number_of_threads_is_refused(threads: str) -> None:
    result = CliRunner().invoke(app, ["bench", "--threads", threads])
    assert result.exit_code == 2
    assert f"--threads is '{threads}'; name a number from 1 to 1024, or auto" in result.stderr


def test_the_table_marks_the_choice_and_threads_that_share_cores() -> None:
    curve = [ThreadPoint(1, 10.0, 20.0, True), ThreadPoint(2, 5.0, 30.0, False)]
    console = Console(width=100, file=StringIO())
    with console.capture() as captured:
        console.print(curve_table(curve, 1, ascii_only=True))
    _, first, second = (line.split() for line in captured.get().splitlines())
    assert first == ["chosen", "1", "10.0", "20.0", "#" * 24]
    assert second == ["more", "than", "cores", "2", "5.0", "30.0", "#" * 12]


def test_the_table_shows_memory_nodes_where_there_are_several() -> None:
    curve = [ThreadPoint(1, 10.0, 20.0, True, 1), ThreadPoint(2, 20.0, 30.0, True, 2)]
    console = Console(width=100, file=StringIO())
    with console.capture() as captured:
        console.print(curve_table(curve, 2, ascii_only=True))
    head, first, second = (line.split() for line in captured.get().splitlines())
    assert head == ["threads", "memory", "nodes", "tokens/s", "reads", "GB/s"]
    assert (first[:2], second[:3]) == (["1", "1"], ["chosen", "2", "2"])


def test_a_wrong_affinity_is_refused() -> None:
    result = CliRunner().invoke(app, ["bench", "--affinity", "sockets"])
    assert result.exit_code == 2
    assert "--affinity is 'sockets'; it must be one of none, cores" in result.stderr


def test_a_runner_on_other_threads_gives_the_same_bits(model: Path) -> None:
    runner = load_runner(open_model(model), threads=1, num_blocks=4, max_context=64, kv_cache="f32")
    other: Any = runner.on_threads(2)
    plan = StepPlan((Chunk("a", [5, 6, 7], 0, [1], True),))
    try:
        np.testing.assert_array_equal(other.execute(plan), runner.execute(plan).copy())
        assert (runner.team.threads, other.team.threads) == (1, 2)
    finally:
        other.close()
        runner.close()
