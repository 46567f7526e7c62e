"""The table of kernels: its cases, its numbers, and that the layers behind it multiply."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from isotherm.cpu_kernels import reference
from isotherm.cpu_kernels.descriptor import N_TOKENS
from isotherm.cpu_kernels.layout import KINDS, packed_bytes
from isotherm.cpu_kernels.team import Team
from isotherm.daemon import bench_kernels
from isotherm.daemon.bench_kernels import KernelTable, measure_kernels
from isotherm.daemon.cli.app import app
from isotherm.daemon.memory import RESERVE, MemoryPlanError
from isotherm.experts import synthetic
from isotherm.experts.formats import FORMATS
from isotherm.experts.synthetic import ProductLayers
from typer.testing import CliRunner

SHAPES, TOKENS = ((32, 64), (48, 128)), (1, 3)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little memory and no time: what is measured here are not speeds."""
    monkeypatch.setattr(synthetic, "FAR", 1 << 15)
    monkeypatch.setattr(bench_kernels, "_SECONDS", 1e-6)
    monkeypatch.setattr(bench_kernels, "read_gb_s", lambda threads: 20.0)


@pytest.fixture(scope="module")
def table() -> KernelTable:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic, "FAR", 1 << 15)
        patch.setattr(bench_kernels, "read_gb_s", lambda threads: 20.0)
        patch.setattr(bench_kernels, "_SECONDS", 1e-6)
        return measure_kernels(1, lambda *_: None, SHAPES, TOKENS)


def test_every_format_is_in_a_case(table: KernelTable) -> None:
    assert {name for row in table.cases for name in row.formats} == set(FORMATS)


def test_every_kind_meets_every_shape_and_number_of_tokens(table: KernelTable) -> None:
    cases = [(row.kind, (row.rows, row.columns), row.tokens) for row in table.cases]
    assert cases == [(kind, shape, tokens) for kind in KINDS for shape in SHAPES for tokens in TOKENS]


def test_rates_follow_from_the_time(table: KernelTable) -> None:
    for row in table.cases:
        assert row.gb_s * row.us * 1e3 == pytest.approx(packed_bytes(row.kind, row.rows, row.columns))
        assert row.gops * row.us * 1e3 == pytest.approx(2 * row.rows * row.columns * row.tokens)


def test_only_single_tokens_are_held_against_plain_reads(table: KernelTable) -> None:
    for row in table.cases:
        assert row.read_share == (pytest.approx(row.gb_s / 20) if row.tokens == 1 else None)


@pytest.mark.parametrize("shape", [(40, 96), *bench_kernels.SHAPES])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_measured_multiplies(kind: str, shape: tuple[int, int]) -> None:
    rows, columns = shape
    layers = ProductLayers(kind, rows, columns, 2, 1)
    assert layers.products * layers.matrix_bytes >= synthetic.FAR
    matrix = layers._ops._weights.matrices["layers.0.k"]
    tiles = layers._ops._weights.arena[matrix.nbytes : 2 * matrix.nbytes].reshape(matrix.tiles, matrix.units, -1)
    weights = reference.unpack(kind, tiles, rows, columns)
    assert np.isfinite(weights).all() and (weights != 0).mean() > 0.5
    layers.counts[N_TOKENS] = 2
    team = Team(1)
    team.run(layers.program, layers.counts)
    team.close()
    x = layers._ops.buffers.normed.plain.view(np.float32)[:, :columns]
    expected = reference.linear(reference.recorded(x, KINDS[kind].record), weights)
    got = layers._ops.buffers.k.view(np.float32)[:, :rows]
    assert np.linalg.norm(got - expected) <= 1e-5 * np.linalg.norm(expected)


def test_too_little_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=RESERVE))
    with pytest.raises(MemoryPlanError, match=r"only 0\.00 GiB of memory can be used"):
        measure_kernels(1, lambda *_: None, SHAPES, TOKENS)


@pytest.mark.parametrize("as_json", [True, False])
def test_the_command_prints_the_table(as_json: bool, table: KernelTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_kernels, "measure_kernels", lambda threads, report: table)
    result = CliRunner().invoke(app, ["bench", "--kernels", "--threads", "1", *(["--json"] if as_json else [])])
    assert result.exit_code == 0
    if as_json:
        shown = json.loads(result.stdout)
        assert len(shown["cases"]) == len(table.cases) and shown["read_gb_s"] == 20
    else:
        assert "plain reads, 1 threads: 20.0 GB/s" in result.stdout
        assert all(kind in result.stdout.split() for kind in KINDS)
