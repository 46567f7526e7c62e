"""The self-test of a start: what kernels it runs on what, and what becomes of a model whose kernels are wrong."""

from pathlib import Path

import numpy as np
import pytest
from isotherm.cpu_kernels.features import host_tier, target_features, tiers_of
from isotherm.cpu_kernels.jit import passing_kernel
from isotherm.cpu_kernels.kv_layout import KV_KINDS, KvCache
from isotherm.cpu_kernels.layout import KINDS
from isotherm.cpu_kernels.program import OPS, Op
from isotherm.cpu_kernels.tiles import PRODUCTS, READERS, choice
from isotherm.daemon.assembly import assemble
from isotherm.daemon.config import Config
from isotherm.daemon.self_test import check_ops
from isotherm.experts import self_test
from isotherm.experts.errors import KernelError
from isotherm.experts.model import open_model
from isotherm.experts.pack import PackedMatrix, PackedWeights, pack
from isotherm.experts.self_test import checked_kernels
from support.engines import engine, feed, lane
from support.tiny import ARCHITECTURES, write_gguf, write_hf

pytestmark = pytest.mark.usefixtures("own_folders")
FORMATS = {"": "Q4_0", "embed": "Q8_0", "v_proj": "Q5_1"}
needs_a_narrower_tier = pytest.mark.skipif(len(tiers_of(target_features())) == 1, reason="there is no narrower tier")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "tiny.gguf", "qwen3_moe", FORMATS, hidden_size=128)
    return tmp_path / "tiny.gguf"


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two kernels of the best tier read their codes by a wrong table, or as another kind's."""
    monkeypatch.setitem(PRODUCTS, "q4", PRODUCTS["iq4"])
    monkeypatch.setitem(READERS, "q8", READERS["q4"])


def test_each_kernel_in_use_is_tested_on_tiles_of_several_roles(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tested: dict[str, list[bytes]] = {}
    check = self_test.fault_on

    def spy(kernel, tile):
        tested.setdefault(f"{kernel.kind} {kernel.part}", []).append(tile.tobytes())
        return check(kernel, tile)

    monkeypatch.setattr(self_test, "fault_on", spy)
    weights = pack(open_model(model))
    kernels = checked_kernels(weights)
    assert {f"{kind} {part}" for part, kind in kernels.chosen} == tested.keys()
    assert tested.keys() == {"q8 reader", "q4 product", "q5m product", "f32 product"}
    first, middle, last = tested["q4 product"]
    stored = weights.arena.tobytes()
    assert stored.index(first) < stored.index(last) and middle not in (first, last)
    assert set(kernels.replaced) == set()


def test_long_rows_are_cut_between_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tested: list[np.ndarray] = []
    monkeypatch.setattr(
        self_test, "fault_on", lambda kernel, tile: tested.append(tile) if kernel.kind == "q4k" else None
    )
    formats = {"": "F32", "down_proj": "Q4_K"}
    write_gguf(tmp_path / "wide.gguf", "llama", formats, hidden_size=256, intermediate_size=1536)
    weights = pack(open_model(tmp_path / "wide.gguf"))
    checked_kernels(weights)
    first, last = weights.matrices["layers.0.down"], weights.matrices["layers.1.down"]
    unit = KINDS["q4k"].unit_bytes
    ends = last.address + last.nbytes
    places = [first.address, last.address + 7 * last.tile_bytes + unit, ends - 4 * unit]
    assert [tile.ctypes.data for tile in tested] == places and {tile.shape for tile in tested} == {(4, unit)}


@needs_a_narrower_tier
def test_a_wrong_kernel_is_replaced_by_the_next_tiers_and_told(model: Path, broken: None) -> None:
    told: list[tuple[str, str]] = []
    kernels = checked_kernels(pack(open_model(model)), lambda name, detail: told.append((name, detail)))
    best, second = (tier.name for tier in tiers_of(target_features())[:2])
    assert kernels.replaced == {"q8 reader": second, "q4 product": second}
    assert [name for name, _ in told] == ["kernel_refused"] * 2
    assert f"q8 reader of {best} on tile 0 of embed: row 0 is off by" in told[0][1]
    assert f"q4 product of {best} on tile 0 of " in told[1][1] and f"{second} takes its place" in told[1][1]


@needs_a_narrower_tier
def test_a_model_with_replaced_kernels_gives_the_same_bits(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine(model) as runner:
        expected = feed(runner, range(30), 0, lane(runner))
    monkeypatch.setitem(PRODUCTS, "q4", PRODUCTS["iq4"])
    with engine(model) as runner:
        assert runner.tile_kernels.replaced
        np.testing.assert_array_equal(feed(runner, range(30), 0, lane(runner)), expected)


def test_a_start_is_refused_where_no_tier_is_right(model: Path, broken: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_narrow_product", lambda kind, tier: PRODUCTS[kind])
    monkeypatch.setattr(choice, "_narrow_reader", lambda kind, tier: READERS[kind])
    with pytest.raises(KernelError, match="self-test failed") as refused:
        checked_kernels(pack(open_model(model)))
    assert all(tier.name in str(refused.value) for tier in tiers_of(target_features()))


@needs_a_narrower_tier
def test_the_status_and_the_metrics_show_it(model: Path, broken: None) -> None:
    assembly = assemble(Config(model=model, threads=1, context=64), lambda stage, done, total: None)
    try:
        status = assembly.status()
        page = assembly.engine.metrics.render().decode()
    finally:
        assembly.engine.stop()
    assert status["self_test"]["kernels"] == 4 + 11  # and the ops
    assert status["self_test"]["replaced"].keys() == {"q8 reader", "q4 product"}
    assert status["kernels"] == host_tier().name
    assert status["events"]["counts"]["kernel_refused"] == 2
    assert 'isotherm_fallback_events_total{name="kernel_refused"} 2.0' in page


@pytest.mark.parametrize("kv_cache", KV_KINDS)
@pytest.mark.parametrize("quantisation", ["F32", "Q4_1"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_ops_of_a_small_model_pass(tmp_path: Path, architecture: str, quantisation: str, kv_cache: KvCache) -> None:
    write_gguf(tmp_path / "tiny.gguf", architecture, quantisation)
    model = open_model(tmp_path / "tiny.gguf")
    unused = 1 + (quantisation == "F32") + (architecture == "llama")  # round_rows, quantise, route
    assert check_ops(model.spec, pack(model), kv_cache) == len(OPS) - unused


@pytest.mark.parametrize("kind", KINDS)
def test_the_small_model_takes_every_kind(tmp_path: Path, kind: str) -> None:
    write_gguf(tmp_path / "tiny.gguf", "llama", "F32")
    model = open_model(tmp_path / "tiny.gguf")
    matrices = {name: PackedMatrix(kind, 32, 64, 0) for name in ("embed", "o")}
    weights = PackedWeights(np.zeros(0, np.uint8), matrices=matrices)
    assert check_ops(model.spec, weights, "f32") == len(OPS) - (3 if KINDS[kind].record == "plain" else 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window": 5, "attention_bias": True},
        {"mlp_only_layers": [0], "norm_topk_prob": True},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_the_small_model_follows_the_rules_of_the_large_one(tmp_path: Path, changes: dict[str, object]) -> None:
    write_hf(tmp_path, "qwen2_moe", **changes)
    model = open_model(tmp_path)
    assert check_ops(model.spec, pack(model), "int16") == len(OPS) - 2


@passing_kernel
def nothing(d, step, worker):
    """An op that leaves its output as it was."""


@pytest.mark.parametrize("name", OPS)
def test_an_op_that_is_wrong_refuses_the_start(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(tmp_path / "tiny.gguf", "qwen3_moe", "BF16" if name == "round_rows" else "Q4_0")
    opened = open_model(tmp_path / "tiny.gguf")
    monkeypatch.setitem(OPS, name, Op(nothing, OPS[name].fields))
    with pytest.raises(KernelError, match="self-test failed: after a prompt the logits"):
        check_ops(opened.spec, pack(opened), "int16")
