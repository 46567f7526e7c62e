"""`isotherm simulate` over a tiny model, made-up machines and traces."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from isotherm.daemon.config import ConfigError
from isotherm.daemon.paths import routing_file
from isotherm.daemon.planning import NEUTRAL
from isotherm.daemon.what_if import Grid, Simulated, simulate
from isotherm.daemon.what_if_plot import draw_what_if, panels
from isotherm.experts.outline import outline
from isotherm.placement.hardware import Estimate
from isotherm.placement.hardware_file import save_profile
from isotherm.placement.trace import RoutingTrace
from isotherm.placement.trace_file import load_trace, merge_into, save_trace
from support.cli import run
from support.drawn_traffic import drawn, skewed, trace_of
from support.plans import GIB, with_cards
from support.tiny import write_gguf

pytestmark = pytest.mark.usefixtures("own_folders")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "tiny.gguf", "qwen3_moe", "Q4_0")
    return tmp_path / "tiny.gguf"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A profile with a card of 2 GiB and a CPU of up to 4 threads."""
    made = with_cards(2 * GIB)
    rates = {1: Estimate(1.0), 4: Estimate(3.0)}
    save_profile(replace(made, cpu=replace(made.cpu, read_gb_s=rates, cores=4)), tmp_path / "machine.json")
    return tmp_path / "machine.json"


@pytest.fixture
def trace(model: Path, tmp_path: Path) -> Path:
    """Of skewed traffic of the model."""
    shape = outline(model, "int16")
    layer = shape.layers[shape.moe_layers[0]]
    sample = drawn(skewed(len(shape.moe_layers), layer.num_experts), 200, layer.top_k)
    made = replace(trace_of(sample, layer.num_experts), fingerprint=shape.fingerprint, layers=shape.moe_layers)
    save_trace(tmp_path / "traffic.npz", made)
    return tmp_path / "traffic.npz"


def quiet(stage: str, done: int, total: int) -> None:
    """No report."""


@pytest.fixture
def simulated(model: Path, machine: Path) -> Callable[..., Simulated]:
    def over(**changes: object) -> Simulated:
        values = {"model": model, "hardware": (str(machine),), "context": (64,), "policies": ("static", "lru")}
        return simulate(Grid(**values | changes), quiet)

    return over


def test_every_combination_has_a_row_for_each_policy(simulated: Callable[..., Simulated]) -> None:
    result = simulated(vram=(0, GIB), context=(64, 128), streams=(1, 2), threads=(1, 4), weight_format=(None, "Q8_0"))
    settings = {row.setting for row in result.rows}
    assert len(settings) == 2**5
    assert len(result.rows) == 2 * len(settings)
    assert {setting.format for setting in settings} == {"", "Q8_0"}
    assert {setting.vram_gib for setting in settings} == {0.0, 1.0}


def test_sizes_that_are_not_named_are_quarters_of_what_is_free(simulated: Callable[..., Simulated]) -> None:
    sizes = [row.setting.vram_gib for row in simulated(policies=("static",)).rows]
    assert sizes == [0.0, 0.5, 1.0, 1.5, 2.0]


def test_more_memory_threads_and_fewer_bits_are_faster(simulated: Callable[..., Simulated]) -> None:
    def rate(**changes: object) -> float:
        found = simulated(policies=("static",), **{"vram": (0,), **changes}).rows[0].outcome
        assert found is not None
        return found.decode.value

    assert rate() < rate(threads=(4,))
    assert rate(weight_format=("Q8_0",)) < rate()
    assert rate() < rate(vram=(GIB,))


def test_what_does_not_fit_has_a_row_that_says_so(simulated: Callable[..., Simulated]) -> None:
    row = simulated(vram=(1 << 20,)).rows[0]
    assert row.outcome is None
    assert "before any weight lies there" in row.note
    assert row.flat()["decode_tok_s"] is None


def test_progress_is_told_up_to_the_last_setting(model: Path, machine: Path) -> None:
    told: list[tuple[int, int]] = []
    grid = Grid(model=model, hardware=(str(machine),), vram=(0, GIB), streams=(1, 2), context=(64,))
    simulate(grid, lambda stage, done, total: told.append((done, total)) if stage == "simulating" else None)
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vram": (3 * GIB,)}, "--vram asks for 3.0 GiB, but card has 2.0 GiB; ask for less"),
        ({"threads": (5,)}, "known with 1 to 4 threads, not with 5"),
        ({"streams": tuple(range(1, 500))}, "499 settings"),
    ],
)
def test_what_cannot_be_simulated_is_refused(
    simulated: Callable[..., Simulated], changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        simulated(**changes)


def test_a_trace_that_is_named_must_be_long_enough(simulated: Callable[..., Simulated], trace: Path) -> None:
    assert simulated(trace=trace, streams=(100,)).trace == str(trace)
    with pytest.raises(ConfigError, match=r"200 decoded tokens, too few to replay 101 streams .* record 202 or more"):
        simulated(trace=trace, streams=(101,))


def test_the_models_own_trace_is_left_out_where_it_is_too_short(
    simulated: Callable[..., Simulated], trace: Path
) -> None:
    own = load_trace(trace)
    merge_into(routing_file(own.fingerprint), own)
    assert simulated(streams=(1, 100)).trace == "the model's own"
    found = simulated(streams=(1, 101))
    assert found.trace == f"{NEUTRAL} (the model's own has 200 decoded tokens, and 101 streams would take 202)"
    routing_file(own.fingerprint).unlink()
    assert simulated(streams=(1, 101)).rows == found.rows


def test_memory_of_no_card_is_refused(model: Path, tmp_path: Path) -> None:
    save_profile(with_cards(), tmp_path / "plain.json")
    grid = Grid(model=model, hardware=(str(tmp_path / "plain.json"),), vram=(GIB,))
    with pytest.raises(ConfigError, match="has no accelerator; name another by --hardware"):
        simulate(grid, quiet)


def test_the_command_prints_and_writes_all(model: Path, machine: Path, trace: Path, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "what-if"
    options = ("--hardware", machine, "--trace", trace, "--vram", "0,1GiB", "--context", 64, "--policy", "static,lru")
    result = run("simulate", model, *options, "--out-dir", folder)
    assert result.exit_code == 0, result.output
    assert "decode" in result.output
    written = json.loads((folder / "simulate.json").read_text())
    assert (written["model"], written["trace"]) == ("tiny", str(trace))
    assert [(row["vram_gib"], row["policy"]) for row in written["rows"]] == [
        (0.0, "static"), (0.0, "lru"), (1.0, "static"), (1.0, "lru"),
    ]  # fmt: skip
    for row in written["rows"]:
        assert 0 < row["decode_tok_s_low"] < row["decode_tok_s"] < row["decode_tok_s_high"]
        assert 0 < row["prefill_tok_s_low"] < row["prefill_tok_s"] < row["prefill_tok_s_high"]
    with (folder / "simulate.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [float(line["decode_tok_s"]) for line in lines] == [row["decode_tok_s"] for row in written["rows"]]
    assert (folder / "simulate.png").read_bytes().startswith(b"\x89PNG")


def test_without_a_trace_the_table_says_so(model: Path, machine: Path) -> None:
    result = run("simulate", model, "--hardware", machine, "--vram", "1GiB", "--context", 64)
    assert "routing trace: none: every expert as likely as any other" in result.output


def test_policies_that_come_to_the_same_share_a_line(model: Path, machine: Path) -> None:
    lines = run("simulate", model, "--hardware", machine, "--vram", "0", "--context", 64).output.splitlines()
    assert [line.split()[0] for line in lines if "computed" in line] == ["all"]


def test_a_trace_alone_gives_hit_rates(trace: Path, tmp_path: Path) -> None:
    to = tmp_path / "hits.json"
    result = run("simulate", trace, "--policy", "static,belady", "--json", to, "--png", tmp_path / "hits.png")
    assert result.exit_code == 0, result.output
    rows = json.loads(to.read_text())["rows"]
    assert {row["policy"] for row in rows} == {"static", "belady"}
    assert all(0 <= row["hit_rate"] <= 1 for row in rows)
    assert (tmp_path / "hits.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--policy", "best"), "--policy is 'best'; choose from static, lru, lfu, lfru, seeded, belady"),
        (("--vram", "8"), "--vram has '8'; name sizes such as 0,8GiB,12GiB"),
        (("--streams", "1,0"), "--streams is '1,0'; name numbers from 1 to 512"),
        (("--streams", "9" * 5000), "name numbers from 1 to 512"),
        (("--context", "4k"), "--context is '4k'; name numbers"),
        (("--threads", ""), "--threads is ''; name values"),
        (("--format", "q9"), "--format is 'q9'; choose from"),
        (("--kv-cache", "int4"), "--kv-cache is 'int4'; it must be one of"),
        (("--hardware", "abacus"), "abacus: neither a file nor a hardware profile"),
        (("--png", "nowhere/at/all.png"), "--png nowhere/at/all.png lies in no folder that exists"),
        (("--png", "a.png", "--out-dir", "b"), "--out-dir does not go with --png"),
    ],
)
def test_a_bad_value_is_refused_in_a_line(model: Path, options: tuple[str, ...], message: str) -> None:
    result = run("simulate", model, *options)
    assert result.exit_code == 2
    assert message in result.output


def test_a_trace_alone_takes_nothing_that_needs_sizes(trace: Path) -> None:
    result = run("simulate", trace, "--vram", "1GiB")
    assert result.exit_code == 2
    assert "--vram needs a model: isotherm simulate MODEL --trace FILE" in result.output


def test_a_trace_without_a_sample_is_refused(trace: Path, tmp_path: Path) -> None:
    loaded: RoutingTrace = load_trace(trace)
    bare = replace(loaded, sample=loaded.sample[:0], starts=np.zeros(0, np.int64))
    save_trace(tmp_path / "bare.npz", bare)
    result = run("simulate", tmp_path / "bare.npz")
    assert result.exit_code == 2
    assert "holds 0 decoded tokens, too few to replay 1 stream on" in result.output


def test_the_trace_of_another_model_is_refused(model: Path, machine: Path, tmp_path: Path) -> None:
    save_trace(tmp_path / "other.npz", trace_of(drawn(skewed(5, 9), 20, 3), 9))
    result = run("simulate", model, "--hardware", machine, "--trace", tmp_path / "other.npz")
    assert result.exit_code == 2


def test_a_picture_has_a_panel_for_each_setting_beside_memory(
    simulated: Callable[..., Simulated], tmp_path: Path
) -> None:
    result = simulated(vram=(0, 1 << 20, GIB), streams=(1, 2))
    found = panels(result.rows)
    assert [len(rows) for rows in found.values()] == [6, 6]
    draw_what_if(tmp_path / "it.png", result)
    assert (tmp_path / "it.png").read_bytes().startswith(b"\x89PNG")


def test_more_panels_than_a_picture_holds_are_refused(model: Path, machine: Path, tmp_path: Path) -> None:
    options = ("--vram", "0", "--context", 64, "--streams", ",".join(map(str, range(1, 14))), "--policy", "static")
    result = run("simulate", model, "--hardware", machine, *options, "--png", tmp_path / "it.png")
    assert result.exit_code == 2
    assert "a picture holds 12 settings beside VRAM, these are 13" in result.output
