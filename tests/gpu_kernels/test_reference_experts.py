"""Experts in torch: the bits of the CPU's kernels, for whichever experts are here."""

import numpy as np
import pytest
import torch
from isotherm.cpu_kernels.layout import KINDS, padded
from isotherm.gpu_kernels.reference import TorchKernels
from isotherm.gpu_kernels.tensors import SENTINEL
from support.matrices import Bank, random_rows, run_experts
from support.torch_values import count_of, empty_record, groups_of, matrix_of, slot_table, tensor

KERNELS = TorchKernels()
MIXED_KINDS = [("q4", "q4", "q6k"), ("f16", "bf16", "q8"), ("f8", "q8b", "f8"), ("q4k", "q5k", "f32"), ("bf16",) * 3]
IDS = {
    "one token": [[4, 0]],
    "a few": [[0, 2], [3, 0], [4, 2], [0, 3], [2, 4]],
    "many": [[(0, 2, 3, 4)[7 * t % 4], (2, 3, 4, 0)[7 * t % 4]] for t in range(33)],
    "one choice": [[3]] * 17,
}


def outputs(bank, x, ids, resident, count=None):
    """(inner record, outs [P, hidden]) of the experts that are here, by slot; 7 in the rows of others."""
    inner, hidden = bank.gate[0].values.shape
    parts = (bank.gate, bank.up, bank.down)
    gate, up, down = (matrix_of(*(part[expert] for expert in resident), bank=True) for part in parts)
    record = empty_record(len(x), hidden, {KINDS[matrix.name].record for matrix in (gate, up)})
    between = empty_record(ids.size, inner, {KINDS[down.name].record})
    outs, count = torch.full((ids.size, hidden), 7.0), count_of(len(x) if count is None else count)
    groups = groups_of(tensor(ids), len(resident), 4)
    KERNELS.align(tensor(ids.astype(np.int32)), slot_table(len(bank.gate), resident), groups, count)
    KERNELS.to_record(tensor(x), record, count)
    KERNELS.gate_up(record, gate, up, groups, between, count)
    KERNELS.down(between, down, groups, outs, count)
    return between, outs.numpy()


@pytest.mark.parametrize("hidden, inner", [(96, 160), (100, 33)])
@pytest.mark.parametrize("kinds", [(kind,) * 3 for kind in KINDS] + MIXED_KINDS, ids="-".join)
def test_experts_give_the_bits_of_the_cpu(kinds, hidden, inner):
    bank, ids = Bank.random(5, hidden, inner, kinds), np.array(IDS["a few"])
    x = random_rows(len(ids), hidden)
    _, expected, position = run_experts(bank, x, ids)
    _, outs = outputs(bank, x, ids, range(5))
    np.testing.assert_array_equal(outs, expected[position])


@pytest.mark.parametrize("case", IDS)
def test_inner_records_are_those_of_the_cpu(case):
    bank, ids = Bank.random(5, 64, 96, ("q4", "q4", "q8")), np.array(IDS[case])
    x = random_rows(len(ids), 64)
    expected, _, position = run_experts(bank, x, ids)
    expected, inner = expected[position], outputs(bank, x, ids, range(5))[0]
    np.testing.assert_array_equal(inner.codes, expected[:, : padded(96)].view(np.int8))
    scales = np.ascontiguousarray(expected[:, padded(96) :][:, : padded(96) // 16]).view(np.float32)
    np.testing.assert_array_equal(inner.scales, scales)


@pytest.mark.parametrize("resident", [[3], [4, 0], [2, 0, 4, 1, 3]])
@pytest.mark.parametrize("case", IDS)
def test_only_experts_that_are_here_are_computed(case, resident):
    bank, ids = Bank.random(5, 64, 96, ("q4", "q4", "q8")), np.array(IDS[case])
    x = random_rows(len(ids), 64)
    _, expected, position = run_experts(bank, x, ids)
    here = np.isin(ids.reshape(-1), resident)
    np.testing.assert_array_equal(
        outputs(bank, x, ids, resident)[1], np.where(here[:, None], expected[position], np.float32(7))
    )


def test_tokens_beyond_the_step_are_left_alone():
    bank, ids = Bank.random(5, 64, 96, ("q4", "q4", "q8")), np.array(IDS["many"])
    x = random_rows(len(ids), 64)
    inner, outs = outputs(bank, x, ids, range(5), count=9)
    np.testing.assert_array_equal(outs[:18], outputs(bank, x, ids, range(5))[1][:18])
    assert (outs[18:] == 7).all() and (inner.codes[18:] == 7).all()


@pytest.mark.parametrize("block", [1, 3, 16])
@pytest.mark.parametrize("resident", [[3], [4, 0], [2, 0, 4, 1, 3]])
@pytest.mark.parametrize("count", [0, 1, 5, 33])
def test_pairs_lie_by_slot_in_whole_blocks(count, resident, block):
    ids = tensor(np.array(IDS["many"], np.int32))
    groups = groups_of(ids, len(resident), block)
    KERNELS.align(ids, slot_table(5, resident), groups, count_of(count))
    blocks = groups.order.reshape(-1, block).tolist()
    expected = []
    for slot, expert in enumerate(resident):
        pairs = [pair for pair, one in enumerate(ids[:count].flatten().tolist()) if one == expert]
        for first in range(0, len(pairs), block):
            some = pairs[first : first + block]
            expected.append((slot, some + [2 * count] * (block - len(some))))
    rest = len(blocks) - len(expected)
    expected += [(SENTINEL, [2 * count] * block)] * rest
    assert list(zip(groups.slots.tolist(), blocks, strict=True)) == expected
