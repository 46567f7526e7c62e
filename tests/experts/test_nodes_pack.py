"""Weights on a machine with several memory nodes: shared out by rows, each share written by threads of its node."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from isotherm.cpu_kernels.layout import KINDS
from isotherm.cpu_kernels.reference import unpack
from isotherm.cpu_kernels.seating import Seating
from isotherm.experts import pack as pack_module
from isotherm.experts import store as store_module
from isotherm.experts.model import Model, open_model
from isotherm.experts.pack import PackedMatrix, PackedWeights, pack, packed_size
from isotherm.experts.store import PackedStore, StoreError
from support.machines import nodes_here
from support.tiny import ARCHITECTURES, write_gguf, write_hf


def values(weights: PackedWeights, matrix: PackedMatrix) -> np.ndarray:
    """The numbers of a matrix, put together from its shards; each of them lies in its node's part of the arena."""
    part, parts = weights.nbytes // matrix.nodes, []
    for shard in matrix.shards:
        start, size = shard.address - weights.arena.ctypes.data, shard.tiles * matrix.tile_bytes
        assert shard.node * part <= start and start + size <= (shard.node + 1) * part and start % 64 == 0
        shape = (shard.tiles, matrix.units, KINDS[matrix.kind].unit_bytes)
        tiles = weights.arena[start : start + size].reshape(shape)
        parts.append(unpack(matrix.kind, tiles, 16 * shard.tiles, matrix.columns))
    return np.concatenate(parts)[: matrix.rows]


WIDE = {"hidden_size": 256, "intermediate_size": 160, "moe_intermediate_size": 160}  # more than one node's share


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_gguf(path, "qwen2_moe", "Q4_0", **WIDE)
    return open_model(path)


@pytest.mark.parametrize("nodes", [2, 3])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_shards_of_all_nodes_are_the_matrix(architecture: str, nodes: int, tmp_path: Path) -> None:
    write_hf(tmp_path, architecture, **WIDE)
    model = open_model(tmp_path)
    weights = pack(model, Seating(nodes, nodes_here(nodes)))
    assert weights.nbytes == packed_size(model, nodes)
    for role, matrix in weights.matrices.items():
        np.testing.assert_array_equal(values(weights, matrix), model.weights.dense(role))
    for role, bank in weights.banks.items():
        assert len(bank[0].shards) > 1
        for expert, matrix in enumerate(bank):
            np.testing.assert_array_equal(values(weights, matrix), model.weights.dense_expert(role, expert))
    for role, vector in weights.vectors.items():
        np.testing.assert_array_equal(vector[: model.weights.shape(role)[0]], model.weights.dense(role))


@pytest.mark.parametrize(
    ("rows", "nodes", "tiles"),
    [
        (320, 1, [20]),
        (320, 2, [12, 8]),
        (96, 2, [4, 2]),
        (33, 2, [4]),
        (1, 2, [2]),
        (768, 4, [12] * 4),
        (99, 4, [4, 4]),
    ],
)
def test_nodes_get_equal_shares_in_spans_of_rows(rows: int, nodes: int, tiles: list[int]) -> None:
    shards = PackedMatrix("q4", rows, 64, 1 << 20, nodes, 1 << 16).shards
    assert [shard.tiles for shard in shards] == tiles
    assert [shard.first for shard in shards] == [sum(tiles[:i]) for i in range(len(tiles))]
    assert [(shard.node, shard.address) for shard in shards] == [(i, (1 << 20) + (i << 16)) for i in range(len(tiles))]


def test_the_memory_of_a_node_is_written_by_threads_bound_to_it(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    topology, wrote = nodes_here(2), list[tuple[int, set[int]]]()
    pack_rows = pack_module.pack_rows
    arenas = []

    def spy(name: str, raw: Any, columns: int, out: np.ndarray) -> None:
        wrote.append((out.ctypes.data, os.sched_getaffinity(0)))
        pack_rows(name, raw, columns, out)

    def arena(size: int) -> np.ndarray:
        arenas.append(np.zeros(size, np.uint8))
        return arenas[-1]

    monkeypatch.setattr(pack_module, "pack_rows", spy)
    monkeypatch.setattr(pack_module, "arena", arena)
    pack(model, Seating(4, topology))
    (memory,) = arenas
    nodes = [(address - memory.ctypes.data) // (memory.nbytes // 2) for address, _ in wrote]
    assert set(nodes) == {0, 1}
    assert [cpus for _, cpus in wrote] == [topology.cpus_of(node) for node in nodes]


def test_a_store_is_read_into_memory_by_threads_bound_to_its_node(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology, seating = nodes_here(2), Seating(2, nodes_here(2))
    packed, store = pack(model, seating), PackedStore(tmp_path, model)
    store.save(packed, seating)
    fill, read = store_module._fill, list[tuple[int, set[int]]]()

    def spy(file: Any, target: memoryview, offset: int) -> bool:
        read.append((offset, os.sched_getaffinity(0)))
        return fill(file, target, offset)

    def refuse(*arguments: object) -> None:
        raise AssertionError("the file is mapped")

    monkeypatch.setattr(store_module, "_fill", spy)
    monkeypatch.setattr(store_module, "map_huge", refuse)
    loaded = store.load(seating)
    np.testing.assert_array_equal(loaded.arena, packed.arena)
    (_, *chunks) = sorted(read, key=lambda one: one[0])  # the head comes first
    assert [cpus for _, cpus in chunks] == [topology.cpus_of(node) for node in (0, 1)]


def test_a_store_for_other_nodes_is_refused(model: Model, tmp_path: Path) -> None:
    store = PackedStore(tmp_path, model)
    store.save(pack(model))
    with pytest.raises(StoreError, match="another number of memory nodes"):
        store.load(Seating(2, nodes_here(2)))
