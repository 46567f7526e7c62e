"""Triton's products of experts, in its interpreter: the bits of the CPU's kernels, for whichever experts are here."""

import numpy as np
import pytest
import torch
from isotherm.cpu_kernels.layout import KINDS, padded
from isotherm.gpu_kernels.tensors import SENTINEL
from support.matrices import Bank, random_rows, run_experts
from support.torch_values import count_of, empty_record, groups_of, matrix_of, slot_table, tensor

triton_kernels = pytest.importorskip("isotherm.gpu_kernels.triton_kernels.kernels", exc_type=ImportError)
KERNELS = triton_kernels.TritonKernels()
KINDS_OF_EXPERTS = [("q4", "q4", "q6k"), ("f16", "bf16", "q8"), ("f8", "q8b", "f8"), ("q4k", "q5k", "f32")]
KINDS_OF_EXPERTS += [("bf16",) * 3, ("mx4", "mx4", "nv4"), ("q4zb", "q4m", "iq4k")]
IDS = {
    "one token": [[4, 0]],
    "a few": [[0, 2], [3, 0], [4, 2], [0, 3], [2, 4]],  # nobody chooses expert 1
    "many": [[(0, 2, 3, 4)[7 * t % 4], (2, 3, 4, 0)[7 * t % 4]] for t in range(18)],
    "one choice": [[3]] * 17,
}


class Here:
    """Some experts of a bank on the device, by slot, and buffers for a step of tokens."""

    def __init__(self, bank, resident, x, ids, block=4):
        self.inner, self.hidden = bank.gate[0].values.shape
        parts = (bank.gate, bank.up, bank.down)
        self.gate, self.up, self.down = (matrix_of(*(part[e] for e in resident), bank=True) for part in parts)
        self.x, self.ids = tensor(x), tensor(ids.astype(np.int32))
        self.table = slot_table(len(bank.gate), resident)
        self.record = empty_record(len(x), self.hidden, {KINDS[matrix.name].record for matrix in (self.gate, self.up)})
        self.between = empty_record(ids.size, self.inner, {KINDS[self.down.name].record})
        self.groups = groups_of(self.ids, len(resident), block)

    def run(self, count=None):
        """float32 [P, hidden]; 7 in the rows of pairs that are not here."""
        outs, count = (
            torch.full((self.ids.numel(), self.hidden), 7.0),
            count_of(len(self.x) if count is None else count),
        )
        KERNELS.align(self.ids, self.table, self.groups, count)
        KERNELS.to_record(self.x, self.record, count)
        KERNELS.gate_up(self.record, self.gate, self.up, self.groups, self.between, count)
        KERNELS.down(self.between, self.down, self.groups, outs, count)
        return outs.numpy()


def on_the_cpu(bank, x, ids):
    """Inner records and outputs by pair."""
    records, outs, position = run_experts(bank, x, ids)
    return records[position], outs[position]


@pytest.mark.parametrize("hidden, inner", [(96, 160), (100, 33)])
@pytest.mark.parametrize("kinds", KINDS_OF_EXPERTS, ids="-".join)
def test_experts_give_the_bits_of_the_cpu(kinds, hidden, inner):
    bank, ids = Bank.random(5, hidden, inner, kinds), np.array([[0, 2], [3, 0]])
    x = random_rows(len(ids), hidden)
    np.testing.assert_array_equal(Here(bank, range(5), x, ids).run(), on_the_cpu(bank, x, ids)[1])


@pytest.mark.parametrize(
    "case, block", [("one token", 1), ("a few", 1), ("a few", 2), ("many", 16), ("one choice", 16)]
)
def test_blocks_of_any_size_give_the_bits_of_the_cpu(case, block):
    bank, ids = Bank.random(5, 64, 96, ("q4", "q4", "q8")), np.array(IDS[case])
    x = random_rows(len(ids), 64)
    here, (records, outs) = Here(bank, range(5), x, ids, block), on_the_cpu(bank, x, ids)
    np.testing.assert_array_equal(here.run(), outs)
    np.testing.assert_array_equal(here.between.codes, records[:, : padded(96)].view(np.int8))
    scales = np.ascontiguousarray(records[:, padded(96) :][:, : padded(96) // 16]).view(np.float32)
    np.testing.assert_array_equal(here.between.scales, scales)


@pytest.mark.parametrize("resident", [[3], [2, 0, 4, 1, 3]])
@pytest.mark.parametrize("case", ["a few", "many"])
def test_only_experts_that_are_here_are_computed(case, resident):
    bank, ids = Bank.random(5, 64, 96, ("q4", "q4", "q8")), np.array(IDS[case])
    x = random_rows(len(ids), 64)
    expected = np.where(np.isin(ids.reshape(-1), resident)[:, None], on_the_cpu(bank, x, ids)[1], np.float32(7))
    np.testing.assert_array_equal(Here(bank, resident, x, ids).run(), expected)


def test_slots_may_be_given_to_other_experts_between_launches():
    bank, ids = Bank.random(5, 64, 96, ("q4", "q4", "q8")), np.array(IDS["a few"])
    x = random_rows(len(ids), 64)
    here, other = Here(bank, [3, 4], x, ids), Here(bank, [3, 2], x, ids)
    here.run()
    for name in ("gate", "up", "down"):
        getattr(here, name).tiles.copy_(getattr(other, name).tiles)
    here.table.copy_(other.table)
    np.testing.assert_array_equal(here.run(), other.run())


def test_tokens_beyond_the_step_are_left_alone():
    bank, ids = Bank.random(5, 64, 96, ("q4", "q4", "q8")), np.array(IDS["many"])
    x = random_rows(len(ids), 64)
    here = Here(bank, range(5), x, ids)
    outs = here.run(count=9)
    np.testing.assert_array_equal(outs[:18], on_the_cpu(bank, x, ids)[1][:18])
    assert (outs[18:] == 7).all() and (here.between.codes[18:] == 7).all()


@pytest.mark.parametrize("block", [1, 4, 16])
@pytest.mark.parametrize("resident", [[3], [4, 0], [2, 0, 4, 1, 3]])
@pytest.mark.parametrize("count", [0, 1, 18])
def test_pairs_lie_together_in_whole_blocks(count, resident, block):
    ids = tensor(np.array(IDS["many"], np.int32))
    groups = groups_of(ids, len(resident), block)
    KERNELS.align(ids, slot_table(5, resident), groups, count_of(count))
    expected = []
    for expert in sorted(resident):
        pairs = [pair for pair, one in enumerate(ids[:count].flatten().tolist()) if one == expert]
        for first in range(0, len(pairs), block):
            some = pairs[first : first + block]
            expected.append((resident.index(expert), some + [2 * count] * (block - len(some))))
    expected += [(SENTINEL, [2 * count] * block)] * (len(groups.slots) - len(expected))
    assert list(zip(groups.slots.tolist(), groups.order.reshape(-1, block).tolist(), strict=True)) == expected


def test_more_pairs_than_one_look_takes_are_found_alike(monkeypatch):
    ids, table = tensor(np.array(IDS["many"], np.int32)), slot_table(5, [4, 0, 3])
    whole, parts = groups_of(ids, 3, 4), groups_of(ids, 3, 4)
    KERNELS.align(ids, table, whole, count_of(18))
    monkeypatch.setattr(triton_kernels, "_PAIRS", 16)
    KERNELS.align(ids, table, parts, count_of(18))
    np.testing.assert_array_equal(parts.order, whole.order)
    np.testing.assert_array_equal(parts.slots, whole.slots)
