"""`isotherm plan` over tiny models and a made-up machine: what it takes, refuses, and where it agrees with `serve`."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from isotherm.daemon import planning
from isotherm.daemon.assembly import plan_memory
from isotherm.daemon.config import Config
from isotherm.daemon.memory import RESERVE, MemoryPlanError
from isotherm.experts.checkpoint.gguf_header import read_header
from isotherm.experts.checkpoint.mapping import map_file
from isotherm.experts.model import open_model
from isotherm.experts.outline import outline
from isotherm.placement import draft
from isotherm.placement.hardware import Estimate
from isotherm.placement.hardware_file import save_profile
from isotherm.placement.plan_file import from_json, load_plan
from isotherm.placement.planner import plan_placement
from isotherm.placement.trace_file import save_trace
from support.cli import run
from support.cost_cases import trace_of
from support.plans import GIB, layers_first, with_cards
from support.tiny import write_gguf, write_hf
from typer.testing import Result

pytestmark = pytest.mark.usefixtures("own_folders")


@pytest.fixture(autouse=True)
def easy_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose plans can be told beforehand; tests of the planner itself undo it."""
    monkeypatch.setattr(draft, "plan_placement", layers_first)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "tiny.gguf", "qwen3_moe", "Q4_0")
    return tmp_path / "tiny.gguf"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A profile with a card of 24 GiB."""
    save_profile(with_cards(24 * GIB), tmp_path / "machine.json")
    return tmp_path / "machine.json"


@pytest.fixture
def no_cards(tmp_path: Path) -> Iterator[Any]:
    """Write the profile of a machine without cards and with so many bytes of RAM."""

    def write(free_bytes: int = 16 * GIB) -> Path:
        save_profile(with_cards(free_bytes=free_bytes), tmp_path / "plain.json")
        return tmp_path / "plain.json"

    return write


def plan_json(*arguments: object) -> dict[str, Any]:
    result = run("plan", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(result: Result, code: int) -> str:
    assert (result.exit_code, result.stdout) == (code, "")
    return result.stderr


def test_json_holds_the_prediction_the_ledger_and_the_why(model: Path, no_cards: Any) -> None:
    content = plan_json(model, "--hardware", no_cards())
    rate = content["predicted_decode_tok_s"]
    assert 0 < rate["low"] < rate["value"] < rate["high"]
    assert content["predicted_prefill_tok_s"].keys() == {"value", "low", "high"}
    assert content["ledger"]["ram"]["terms"]["experts"] == 2 * outline(model, "int16").layers[0].expert_bytes * 8
    assert content["policy"] == "layers first"
    assert any("No accelerator" in reason for reason in content["reasons"])
    assert content["shadow_price_ms_per_gib"] == {}
    assert content["traffic"] == {"streams": 1, "context": 512, "prompt": 512, "chunk": 512}


def test_cards_streams_and_context_are_taken(model: Path, machine: Path) -> None:
    arguments = ("--hardware", machine, "--vram", "gpu0=1.5GiB", "--context", 256, "--streams", 3)
    content = plan_json(model, *arguments)
    assert content["ledger"]["gpu0"]["budget_bytes"] == 3 * GIB // 2
    assert (content["traffic"]["streams"], content["traffic"]["context"], content["traffic"]["prompt"]) == (3, 256, 256)
    assert content["ledger"]["gpu0"]["terms"]["KV cache"] == 3 * 256 * outline(model, "int16").kv_bytes
    assert content["shadow_price_ms_per_gib"] == {"gpu0": 2.5}


def test_the_table_says_what_why_and_what_the_next_gib_would_save(model: Path, machine: Path) -> None:
    result = run("plan", model, "--hardware", machine, "--vram", "gpu0=2GiB")
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    for part in (
        "decode",
        "tokens/s",
        "KV cache",
        "headroom",
        "gpu0",
        "next",
        "Why",
        "No layer needs the CPU",
        "policy",
    ):
        assert part in text


def test_a_plan_is_written_and_read_and_compared(model: Path, machine: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "a.json", tmp_path / "b.json"
    content = plan_json(model, "--hardware", machine, "--vram", "gpu0=0GiB", "--out", one)
    assert load_plan(one) == from_json(content, "b")
    assert run("plan", model, "--hardware", machine, "--out", two).exit_code == 0
    result = run("plan", "diff", one, two)
    assert result.exit_code == 0
    assert "experts" in result.stdout
    assert "budget of gpu0" in result.stdout
    found = json.loads(run("plan", "diff", one, two, "--json").stdout)
    assert found["moves"][0]["before"] == "the CPU"
    assert "The plans are alike." in run("plan", "diff", one, one).stdout


def test_the_planner_itself_keeps_to_every_budget(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft, "plan_placement", plan_placement)
    save_profile(with_cards(24 * GIB, 24 * GIB), tmp_path / "two.json")
    arguments = (model, "--hardware", tmp_path / "two.json", "--context", 512, "--streams", 2)
    fixed = plan_json(*arguments, "--vram", "gpu1=0GiB")["ledger"]["gpu0"]["terms"]
    least = sum(fixed[name] for name in ("activations", "accelerator context", "headroom"))
    for spare in (200 << 10, 1 << 20, 4 << 20):
        size = f"{(least + spare) / 2**20:.6f}MiB"
        content = plan_json(*arguments, "--vram", f"gpu0={size}", "--vram", f"gpu1={size}")
        assert all(account["free_bytes"] >= 0 for account in content["ledger"].values())
        assert any("gpu0 holds" in reason for reason in content["reasons"])


def test_a_header_alone_is_planned_as_the_whole_file(model: Path, no_cards: Any, tmp_path: Path) -> None:
    whole = plan_json(model, "--hardware", no_cards())
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(model.read_bytes()[: read_header(model, map_file(model)).end])
    header = plan_json(cut, "--hardware", no_cards())
    assert header["predicted_decode_tok_s"] == whole["predicted_decode_tok_s"]
    assert header["ledger"] == whole["ledger"]
    assert any("of the header alone" in reason for reason in header["reasons"])


def test_a_config_alone_is_planned(tmp_path: Path, no_cards: Any) -> None:
    write_hf(tmp_path / "whole", "mixtral")
    (tmp_path / "bare").mkdir()
    shutil.copy(tmp_path / "whole" / "config.json", tmp_path / "bare")
    content = plan_json(tmp_path / "bare", "--hardware", no_cards(), "--format", "q8_0")
    assert content["model"] == "bare"
    assert content["ledger"]["ram"]["terms"]["experts"] > 0


@pytest.mark.parametrize("spare", [-RESERVE, -1, 100 << 10, 10 << 20, 10 * GIB])
def test_plan_refuses_what_serve_refuses_in_its_words(
    model: Path, no_cards: Any, spare: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft, "plan_placement", plan_placement)
    opened = open_model(model)
    free = RESERVE + outline(model, "int16").nbytes + spare
    try:
        blocks = plan_memory(opened, Config(model=model), free)
    except MemoryPlanError as error:
        text = refused(run("plan", model, "--hardware", no_cards(max(free, 1))), 4)
        assert str(error) in text
    else:
        content = plan_json(model, "--hardware", no_cards(free))
        assert content["ledger"]["ram"]["terms"]["KV cache"] == blocks * 16 * outline(model, "int16").kv_bytes


def test_a_disk_that_a_named_machine_has_is_counted_on(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft, "plan_placement", plan_placement)
    shape = outline(model, "int16")
    free = RESERVE + shape.nbytes + 512 * shape.kv_bytes
    for spare, from_disk in ((0, False), (-3 * shape.layers[0].expert_bytes, True)):
        hardware = replace(with_cards(free_bytes=free + spare), ssd_read_gb_s=Estimate(2.0))
        save_profile(hardware, tmp_path / "disk.json")
        content = plan_json(model, "--hardware", tmp_path / "disk.json", "--context", 512)
        assert any(layer["from_disk"] for layer in content["layers"]) == from_disk
        assert any("which `isotherm serve` does not do" in reason for reason in content["reasons"]) == from_disk


def test_more_streams_than_fit_are_refused_with_what_would_do(model: Path, no_cards: Any) -> None:
    shape = outline(model, "int16")
    free = RESERVE + shape.nbytes + 4 * 512 * shape.kv_bytes
    text = refused(run("plan", model, "--hardware", no_cards(free), "--streams", 8, "--context", 512), 4)
    assert "any of these would fit: --streams 4, --context 256, --kv-cache int8" not in text  # int8 is more than half
    assert "any of these would fit: --streams 4, --context 256, " in text
    assert plan_json(model, "--hardware", no_cards(free), "--streams", 4, "--context", 512)


def test_without_a_profile_this_machine_is_measured_and_its_free_memory_counts(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def measured(kinds: tuple[str, ...], threads: int | None, progress: object) -> Any:
        asked.append((kinds, threads))
        return replace(with_cards(), name="this one")

    monkeypatch.setattr(planning, "this_machine", measured)
    monkeypatch.setattr(planning, "free_memory", lambda: 7 * GIB)
    content = plan_json(model)
    assert asked == [(("q4", "f32"), None)]
    assert (content["hardware"], content["ledger"]["ram"]["budget_bytes"]) == ("this one", 7 * GIB)


def skewed_trace(model: Path) -> Any:
    chosen = [[[0, 1], [2, 3]]] * 200
    return replace(trace_of(chosen, 8), fingerprint=open_model(model).checkpoint.fingerprint)


def test_a_trace_is_used_where_it_is_named_or_the_models_own(model: Path, no_cards: Any, tmp_path: Path) -> None:
    neutral = plan_json(model, "--hardware", no_cards())
    assert neutral["trace"] == planning.NEUTRAL
    assert neutral["inputs"]["trace"] == ""
    save_trace(tmp_path / "trace.npz", skewed_trace(model))
    named = plan_json(model, "--hardware", no_cards(), "--trace", tmp_path / "trace.npz", "--streams", 4)
    assert named["inputs"]["trace"] != ""
    own = planning.routing_file(skewed_trace(model).fingerprint)
    own.parent.mkdir(parents=True)
    save_trace(own, skewed_trace(model))
    kept = plan_json(model, "--hardware", no_cards(), "--streams", 4)
    assert kept["trace"] == "the model's own"
    assert kept["predicted_decode_tok_s"] == named["predicted_decode_tok_s"]
    assert plan_json(model, "--hardware", no_cards(), "--format", "q8_0")["trace"] == "the model's own"


def test_a_trace_of_another_model_is_refused(model: Path, no_cards: Any, tmp_path: Path) -> None:
    other = replace(skewed_trace(model), fingerprint="cd" * 32)
    save_trace(tmp_path / "trace.npz", other)
    arguments = ("--hardware", no_cards(), "--trace", tmp_path / "trace.npz")
    assert "trace.npz" in refused(run("plan", model, *arguments), 2)
    wide = replace(other, num_experts=8, layers=(0, 1, 2), sample=np.zeros((4, 3, 2), np.uint16))
    with pytest.raises(planning.TraceError, match="which tiny has not"):
        planning._check_trace(wide, outline(model, "int16"), tmp_path / "trace.npz")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--vram", "gpu0"), "--vram is 'gpu0'; name an accelerator and a size, such as gpu0=10GiB"),
        (("--vram", "gpu0=\uff11GiB"), "--vram is 'gpu0=\uff11GiB'; name an accelerator"),
        (("--vram", "gpu0=1GiB", "--vram", "gpu0=2GiB"), "--vram names gpu0 twice; leave one of them out"),
        (("--format", "q9"), "--format is 'q9'; choose from f32"),
        (("--format", ""), "--format is ''; choose from f32"),
        (("--vram", "gpu1=1GiB"), "--vram names gpu1, but round has 1 accelerator"),
        (("--vram", "gpu0=99GiB"), "--vram gives more of gpu0 than its 24.00 GiB"),
        (("--streams", 0), "--streams is 0; it must lie between 1 and 512"),
        (("--context", 4096), "--context is 4096; this model takes at most 512 tokens"),
        (("--context", 1), "--context is 1; it must lie between 16"),
        (("--kv-cache", "int3"), "--kv-cache is 'int3'; it must be one of int16"),
        (("--trace", "none.npz"), "none.npz"),
    ],
)
def test_a_wrong_setting_is_refused_in_a_line(model: Path, machine: Path, arguments: Any, message: str) -> None:
    assert message in refused(run("plan", model, "--hardware", machine, *arguments), 2)


def test_an_unknown_machine_and_model_are_refused(model: Path, machine: Path, tmp_path: Path) -> None:
    assert "no-such-machine" in refused(run("plan", model, "--hardware", "no-such-machine"), 2)
    assert "no such file" in refused(run("plan", tmp_path / "no.gguf", "--hardware", machine), 3)
    assert "is no plan" in refused(run("plan", "diff", machine, machine), 2)


def test_a_kind_that_a_profile_does_not_know_is_refused(model: Path, machine: Path) -> None:
    text = refused(run("plan", model, "--hardware", machine, "--format", "bf16"), 2)
    assert "'bf16', only f32, q4, q8; run `isotherm calibrate`" in text


def test_units_of_sizes_are_binary_or_decimal(model: Path, machine: Path) -> None:
    for text, size in (
        ("gpu0=2048MiB", 2 * GIB),
        ("GPU0=2GB", 2 * 10**9),
        ("gpu0=2.5gib", 5 * GIB // 2),
        ("gpu0=0", 0),
    ):
        assert plan_json(model, "--hardware", machine, "--vram", text)["ledger"]["gpu0"]["budget_bytes"] == size
