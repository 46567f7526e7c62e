"""Starts from the packed store, and whether packed weights are the same."""

from pathlib import Path

import numpy as np
from isotherm.daemon.events import EventLog
from isotherm.daemon.pack_cache import PackCache
from isotherm.experts.model import Model
from isotherm.experts.pack import PackedMatrix, PackedWeights
from isotherm.experts.store import PackedStore

Notes = list[tuple[str, str]]


def start(model: Model, folder: Path, threads: int = 1) -> tuple[PackedWeights, Notes]:
    """What a start of the daemon does, and what it notes."""
    events = EventLog()
    cache = PackCache(PackedStore(folder, model), events)
    weights = cache.load_or_pack(threads)
    cache.write(threads)
    return weights, [(event.name, event.detail) for event in events.recent()]


def places(weights: PackedWeights) -> dict[str, object]:
    """All parts of packed weights, with offsets in the place of addresses."""
    base = weights.arena.ctypes.data

    def place(matrix: PackedMatrix) -> tuple[object, ...]:
        return matrix.kind, matrix.rows, matrix.columns, matrix.address - base

    return {
        "matrices": {role: place(matrix) for role, matrix in weights.matrices.items()},
        "banks": {role: [place(matrix) for matrix in bank] for role, bank in weights.banks.items()},
        "vectors": {role: vector.tolist() for role, vector in weights.vectors.items()},
        "reencoded": weights.reencoded,
    }


def assert_same(got: PackedWeights, expected: PackedWeights) -> None:
    np.testing.assert_array_equal(got.arena, expected.arena)
    assert places(got) == places(expected)
