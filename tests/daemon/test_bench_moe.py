"""One synthetic MoE layer: what it computes, what it is compared with, and what it refuses."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from isotherm.daemon import bench_moe
from isotherm.daemon.bench_moe import MoeOptions, MoeRow, measure_moe
from isotherm.daemon.cli.app import app
from isotherm.daemon.cli.output import ExitCode
from isotherm.daemon.config import ConfigError
from isotherm.daemon.memory import RESERVE, MemoryPlanError
from isotherm.experts.formats import FORMATS
from isotherm.experts.random_weights import DISTINCT, FAR, PARTS, MoeShape, can_encode, random_weights
from typer.testing import CliRunner

SHAPE = MoeShape(experts=5, active=2, hidden=64, intermediate=96)
# Bounds of the error of a layer, format included: three products of normal weights, whose groups of 32 lie within
# about 2.3 deviations.
ERRORS = {
    "F32": (0, 1e-6),
    "F16": (1e-5, 1e-3),
    "BF16": (1e-4, 1e-2),
    "Q8_0": (1e-3, 0.02),
    "Q5_0": (0.02, 0.12),
    "Q5_1": (0.02, 0.12),
    "Q4_0": (0.05, 0.25),
    "Q4_1": (0.05, 0.25),
    "MXFP4": (0.05, 0.25),
    "TQ1_0": (0.5, 1.1),  # -1, 0, 1 times the largest: most normal weights become 0
    "TQ2_0": (0.5, 1.1),
    "FP8": (0.02, 0.04),
    "INT4": (0.05, 0.25),
    "INT4_BF16": (0.05, 0.25),
    "INT4_ZP": (0.05, 0.25),
    "INT4_ZP_BF16": (0.05, 0.25),
    "INT8": (0.005, 0.03),
    "INT8_BF16": (0.005, 0.03),
}


@pytest.fixture(autouse=True)
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_moe, "_SECONDS", 0)


def run(**changes: Any) -> list[MoeRow]:
    options: dict[str, Any] = {"shape": SHAPE, "format": "Q4_0", "threads": 1, "tokens": (1,)}
    return measure_moe(MoeOptions(**options | changes), lambda *_: None)


def test_every_format_that_can_be_written_is_measured() -> None:
    assert {name for name in FORMATS if can_encode(name)} == set(ERRORS)


@pytest.mark.parametrize("name", ERRORS)
def test_the_error_is_that_of_the_format(name: str) -> None:
    (row,) = run(format=name, shape=SHAPE if FORMATS[name].block <= 32 else MoeShape(5, 2, 256, 256))
    low, high = ERRORS[name]
    assert low <= row.error <= high
    assert row.product_error <= 2 * FORMATS[name].product_error  # three products, of which two run side by side


def test_the_first_token_has_the_same_bits_in_any_company() -> None:
    assert len({(row.error, row.product_error) for row in run(tokens=(1, 9, 33), threads=2)}) == 1


@pytest.mark.parametrize(
    "shape",
    [MoeShape(DISTINCT + 4, DISTINCT + 4, 32, 32), MoeShape(3, 1, 100, 33), MoeShape(1, 1, 32, 1)],
    ids=["experts that repeat", "off the tile", "one expert"],
)
def test_any_shape_is_computed(shape: MoeShape) -> None:
    assert run(shape=shape, format="F32", tokens=(3,))[0].error < 1e-6


def test_operations_are_those_of_the_three_products() -> None:
    for row in run(tokens=(1, 4)):
        assert row.gops * row.us * 1e3 == pytest.approx(2 * 3 * 64 * 96 * 2 * row.tokens)


def test_weights_have_the_deviation_that_keeps_the_size_of_a_vector() -> None:
    for part in PARTS:
        weights = random_weights(0, part, SHAPE)
        assert weights.shape == SHAPE.matrix(part)
        assert weights.std() == pytest.approx(weights.shape[1] ** -0.5, rel=0.05)
    assert (random_weights(0, "gate", SHAPE) != random_weights(1, "gate", SHAPE)).any()


@pytest.mark.parametrize("kind", ["q4", "f32"])
def test_copies_are_more_than_caches_hold(kind: str) -> None:
    shape = MoeShape(128, 8, 2048, 768)
    assert shape.copies(kind) >= 2
    assert shape.copies(kind) * shape.layer_bytes(kind) >= 4 * FAR


def test_a_token_goes_to_distinct_experts() -> None:
    for ids, weights in bench_moe._routes(SHAPE, 50, np.random.default_rng(0)):
        assert all(len(set(row)) == SHAPE.active and 0 <= min(row) <= max(row) < 5 for row in ids.tolist())
        assert weights.shape == ids.shape


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "Q4_K"}, "--format q4_k can be read but not written here; choose from f32"),
        ({"shape": MoeShape(2, 3, 64, 64)}, "3 active of 2 experts"),
        ({"shape": MoeShape(2, 1, 64, 33)}, "intermediate 33, but a block of q4_0 is 32 wide"),
        ({"shape": MoeShape(2, 1, 33, 64)}, "hidden 33, but a block of q4_0 is 32 wide"),
    ],
)
def test_what_cannot_be_measured_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run(**changes)


def layer(sizes: dict[str, int]) -> MoeShape:
    return MoeShape(sizes["experts"], 8, sizes["hidden"], sizes["intermediate"])


@pytest.mark.parametrize("size", ["experts", "hidden", "intermediate", "tokens"])
def test_what_does_not_fit_is_refused(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"experts": 128, "hidden": 2048, "intermediate": 768, "tokens": 1}
    fits = layer(sizes).needed_bytes("q4", 1)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=RESERVE + fits))
    sizes[size] *= 512
    with pytest.raises(MemoryPlanError, match="choose fewer experts"):
        run(shape=layer(sizes), tokens=(sizes["tokens"],))


def command(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["bench", *arguments])


def test_the_command_prints_one_array() -> None:
    result = command("--moe", "4x2x32x64", "--format", "q8_0", "--threads", "1", "--tokens", "1,3", "--json")
    assert result.exit_code == 0
    rows = json.loads(result.stdout)
    assert [row["tokens"] for row in rows] == [1, 3]
    assert all(set(row) == {"tokens", "us", "gops", "error", "product_error"} for row in rows)


def test_the_command_prints_a_table() -> None:
    result = command("--moe", "4x2x32x64", "--tokens", "1", "--threads", "1")
    assert result.stdout.split()[:10] == ["tokens", "us", "a", "layer", "GOPS", "error", "of", "the", "products", "1"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--moe", "4x2x32"), "--moe is '4x2x32'; name experts x active"),
        (("--moe", "4x2x32x0"), "each from 1 to"),
        (("--moe", "4x2x32xa"), "such as 128x8x2048x768"),
        (("--moe", "4x2x32x64", "--format", "q9"), "--format is 'q9'; choose from f32"),
        (("--moe", "4x2x32x64", "--tokens", "1,0"), "--tokens is '1,0'; name numbers"),
        (("--moe", "4x2x32x64", "--threads", "auto"), "--threads is 'auto'; name a number"),
        (("--moe", "4x5x32x64"), "5 active of 4 experts"),
        (("--moe", "4x2x32x64", "--gen", "3"), "--gen does not go with --moe"),
        (("m.gguf", "--moe", "4x2x32x64"), "a model does not go with --moe"),
        (("--moe", "4x2x32x64", "--kernels"), "--moe does not go with --kernels"),
        (("--tokens", "3"), "--tokens does not go with a model"),
    ],
)
def test_a_wrong_command_exits_with_2_and_says_why(arguments: tuple[str, ...], words: str) -> None:
    result = command(*arguments)
    assert (result.exit_code, len(result.stderr.splitlines())) == (ExitCode.USAGE, 1)
    assert words in result.stderr
