"""Packed matrices and activations of NumPy as the values that kernels on accelerators take."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from isotherm.cpu_kernels.layout import KINDS, padded
from isotherm.gpu_kernels.tensors import SENTINEL, Groups, Matrix, Record, most_blocks
from support.matrices import Matrix as PackedMatrix


def tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))


def count_of(tokens: int) -> torch.Tensor:
    return torch.tensor([tokens], dtype=torch.int32)


def matrix_of(*matrices: PackedMatrix, bank: bool = False) -> Matrix:
    """One matrix, or a bank of some by slot."""
    first = matrices[0]
    tiles = np.stack([matrix.tiles for matrix in matrices]) if bank else first.tiles
    return Matrix(first.kind, KINDS[first.kind], *first.values.shape, tensor(tiles))


def empty_record(rows: int, columns: int, forms: Iterable[str], fill: int = 7) -> Record:
    """Room for `rows`, filled with something; forms: "plain", "bf16", "q8"."""
    forms, width = set(forms), padded(columns)
    plain = torch.full((rows, width), float(fill)) if "plain" in forms else None
    if plain is None and "bf16" in forms:
        plain = torch.full((rows, width), float(fill), dtype=torch.bfloat16)
    if "q8" not in forms:
        return Record(plain)
    codes = torch.full((rows, width), fill, dtype=torch.int8)
    return Record(plain, codes, torch.full((rows, width // 64), float(fill)))


def groups_of(ids: torch.Tensor, slots: int, block: int) -> Groups:
    """Room for the groups of ids [T, K]."""
    blocks = most_blocks(ids.numel(), slots, block)
    order = torch.full((blocks * block,), 99, dtype=torch.int32)
    return Groups(order, torch.full((blocks,), 99, dtype=torch.int32), block, ids.shape[1])


def slot_table(experts: int, resident: Sequence[int]) -> torch.Tensor:
    """Of each expert its slot: `resident` lists the experts by slot."""
    table = torch.full((experts,), SENTINEL, dtype=torch.int32)
    table[list(resident)] = torch.arange(len(resident), dtype=torch.int32)
    return table
