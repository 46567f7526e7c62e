"""Launches of the Triton kernels that multiply, on tensors of zeros: each sort of kind, for one token and more."""

import torch
from isotherm.cpu_kernels.layout import KINDS, packed_shape
from isotherm.gpu_kernels.kernels import Kernels
from isotherm.gpu_kernels.tensors import Matrix
from isotherm.gpu_kernels.triton_kernels import triton_kernels
from support.torch_values import count_of, empty_record, groups_of, slot_table

HIDDEN, INNER, SLOTS = 512, 256, 3
MATRICES = [("q4", 1), ("q4", 32), ("q4k", 32), ("q3k", 4), ("iq4k", 32), ("f8", 32), ("f16", 1), ("bf16", 32)]
EXPERTS = [(("q4k", "q4k", "q6k"), 1), (("q4", "mx4", "bf16"), 16)]


def zeros(kind: str, rows: int, columns: int, slots: int = 0) -> Matrix:
    shape = packed_shape(kind, rows, columns)
    return Matrix(kind, KINDS[kind], rows, columns, torch.zeros((slots, *shape) if slots else shape, dtype=torch.uint8))


def launch() -> None:
    kernels = triton_kernels()
    for kind, tokens in MATRICES:
        x, count, matrix = (
            empty_record(tokens, HIDDEN, {KINDS[kind].record}),
            count_of(tokens),
            zeros(kind, INNER, HIDDEN),
        )
        kernels.to_record(torch.zeros(tokens, HIDDEN), x, count)
        kernels.linear(x, matrix, torch.zeros(tokens, INNER), count)
        kernels.embed(torch.zeros(tokens, dtype=torch.int64), matrix, torch.zeros(tokens, HIDDEN), count)
    for kinds, tokens in EXPERTS:
        launch_experts(kernels, kinds, tokens)


def launch_experts(kernels: Kernels, kinds: tuple[str, str, str], tokens: int) -> None:
    gate, up = (zeros(kind, INNER, HIDDEN, SLOTS) for kind in kinds[:2])
    down = zeros(kinds[2], HIDDEN, INNER, SLOTS)
    count, ids = count_of(tokens), torch.zeros((tokens, 2), dtype=torch.int32)
    groups = groups_of(ids, SLOTS, tokens)
    x = empty_record(tokens, HIDDEN, {gate.kind.record, up.kind.record})
    inner, outs = empty_record(2 * tokens, INNER, {down.kind.record}), torch.zeros(2 * tokens, HIDDEN)
    kernels.align(ids, slot_table(4, range(3)), groups, count)
    kernels.gate_up(x, gate, up, groups, inner, count)
    kernels.down(inner, down, groups, outs, count)
    kernels.combine(torch.zeros(tokens, HIDDEN), outs, torch.zeros(tokens, 2), None, count)
    kernels.combine(torch.zeros(tokens, HIDDEN), outs, None, torch.zeros(tokens), count)
