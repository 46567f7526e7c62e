"""The self-test of a start: each tile kernel that a model uses against its definition, on tiles of the model's weights.

A kernel that is wrong is refused: the next narrower tier's takes its place if that one is right.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..cpu_kernels.features import target_features, tiers_of
from ..cpu_kernels.jit import cache_folder
from ..cpu_kernels.layout import KINDS, ROWS
from ..cpu_kernels.tiles.check import fault_on
from ..cpu_kernels.tiles.choice import Part, TileKernel, TileKernels, tile_kernel
from .errors import KernelError
from .pack import PackedMatrix, PackedWeights

_MOST_SPANS = 16  # of a tile; what goes wrong does so within a few

Note = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class _Sample:
    """A part of a tile, uint8 [units, unit_bytes], and where it lies."""

    name: str
    tile: NDArray[np.uint8]


def checked_kernels(weights: PackedWeights, note: Note | None = None) -> TileKernels:
    """The tile kernels for `weights`, each found right. `note(name, detail)` is told of one that was not.

    Raises KernelError where no tier's kernel is right.
    """
    chosen: dict[tuple[Part, str], TileKernel] = {}
    for part, kind, samples in _in_use(weights):
        chosen[part, kind] = _first_right(part, kind, samples, note)
    return TileKernels(chosen)


def _first_right(part: Part, kind: str, samples: list[_Sample], note: Note | None) -> TileKernel:
    faults: list[str] = []
    for tier in tiers_of(target_features()):
        kernel = tile_kernel(part, kind, tier)
        fault = _fault(kernel, samples)
        if fault is None:
            if faults and note:
                note("kernel_refused", f"{'; '.join(faults)}; {tier.name} takes its place, and may be slower")
            return kernel
        faults.append(fault)
    raise KernelError(f"{'; '.join(faults)}; and nothing slower is right either", cache_folder())


def _fault(kernel: TileKernel, samples: list[_Sample]) -> str | None:
    for sample in samples:
        fault = fault_on(kernel, sample.tile)
        if fault:
            return f"{kernel} on {sample.name}: {fault}"
    return None


def _in_use(weights: PackedWeights) -> Iterator[tuple[Part, str, list[_Sample]]]:
    """Each part and kind that a program over `weights` calls, with tiles of matrices that it is called for."""
    embed = weights.matrices["embed"]
    yield "reader", embed.kind, _samples(weights, [("embed", embed)])
    by_kind: dict[str, list[tuple[str, PackedMatrix]]] = {}
    for name, matrix in _multiplied(weights):
        by_kind.setdefault(matrix.kind, []).append((name, matrix))
    for kind, matrices in by_kind.items():
        yield "product", kind, _samples(weights, matrices)


def _multiplied(weights: PackedWeights) -> Iterator[tuple[str, PackedMatrix]]:
    """The matrices that tokens are multiplied by; of a bank the expert in its middle."""
    yield from ((role, matrix) for role, matrix in weights.matrices.items() if role != "embed")
    for role, bank in weights.banks.items():
        expert = len(bank) // 2
        yield f"{role} of expert {expert}", bank[expert]


def _samples(weights: PackedWeights, matrices: list[tuple[str, PackedMatrix]]) -> list[_Sample]:
    """The first tile of the first matrix, the middle one of the middle matrix, the last one of the last."""
    places = {}
    for (name, matrix), part in zip((matrices[0], matrices[len(matrices) // 2], matrices[-1]), (0, 1, 2), strict=True):
        tile = part * ((matrix.rows - 1) // ROWS) // 2  # not one of padding alone
        first = part * max(matrix.units - _most_units(matrix), 0) // 2
        places[matrix.address, tile, first] = _Sample(f"tile {tile} of {name}", _part_of(weights, matrix, tile, first))
    return list(places.values())


def _most_units(matrix: PackedMatrix) -> int:
    return _MOST_SPANS // KINDS[matrix.kind].spans


def _part_of(weights: PackedWeights, matrix: PackedMatrix, tile: int, first: int) -> NDArray[np.uint8]:
    """A tile's units from the `first` on."""
    unit_bytes, units = KINDS[matrix.kind].unit_bytes, min(matrix.units, _most_units(matrix))
    node, below = divmod(tile, matrix.share)
    here = matrix.address + node * matrix.gap + below * matrix.tile_bytes + first * unit_bytes
    start = here - weights.arena.ctypes.data
    return weights.arena[start : start + units * unit_bytes].reshape(units, unit_bytes)
