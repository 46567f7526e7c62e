"""Experts: which pairs of tokens and choices are here, their products, and the sum of a token's choices."""

from collections.abc import Iterator

import torch
from torch import Tensor

from ..tensors import SENTINEL, Groups, Matrix, Record
from .fused import add, add_up, gated, sigmoid
from .matrices import product
from .records import take_rows, write_record

_ROUNDING = 1e-6  # of the sum of weights that were made to add up to one


def align(ids: Tensor, slots: Tensor, out: Groups, count: Tensor) -> None:
    """See `Kernels.align`."""
    tokens = int(count)
    slot_of = slots[ids[:tokens].long()].flatten()
    out.order.fill_(slot_of.numel())
    out.slots.fill_(SENTINEL)
    here = (slot_of != SENTINEL).nonzero()[:, 0]
    slot_of, by_slot = torch.sort(slot_of[here].long(), stable=True)
    pairs = torch.bincount(slot_of, minlength=1)
    blocks = (pairs + out.block - 1) // out.block
    # a pair's place: how many are before it, and how many more to fill up the blocks of the slots before
    fill = blocks * out.block - pairs
    places = torch.arange(len(slot_of), device=slot_of.device) + (fill.cumsum(0) - fill)[slot_of]
    out.order[places] = here[by_slot].int()
    numbers = torch.arange(len(pairs), dtype=torch.int32, device=slot_of.device)
    out.slots[: int(blocks.sum())] = numbers.repeat_interleave(blocks)


def gate_up(x: Record, gate: Matrix, up: Matrix, groups: Groups, out: Record, count: Tensor) -> None:
    """See `Kernels.gate_up`."""
    for slot, pairs in _by_slot(groups, count):
        rows = take_rows(x, pairs // groups.top_k)
        inner = gated(product(rows, gate, gate.tiles[slot]), product(rows, up, up.tiles[slot]))
        write_record(inner, out, pairs)


def down(inner: Record, bank: Matrix, groups: Groups, out: Tensor, count: Tensor) -> None:
    """See `Kernels.down`."""
    for slot, pairs in _by_slot(groups, count):
        out[pairs] = product(take_rows(inner, pairs), bank, bank.tiles[slot])


def _by_slot(groups: Groups, count: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Each slot that has pairs, with their numbers."""
    most = int(count) * groups.top_k
    order = groups.order.unflatten(0, (-1, groups.block)).long()
    for slot in groups.slots.unique().tolist():
        if slot != SENTINEL:
            pairs = order[groups.slots == slot].flatten()
            yield slot, pairs[pairs < most]


def combine(x: Tensor, outs: Tensor, weights: Tensor | None, gate: Tensor | None, count: Tensor) -> None:
    """See `Kernels.combine`. Experts that agree give what one gives: by (sum of weights) * last + sum of weight * (row
    - last)."""
    tokens = int(count)
    if weights is None:
        weights = x.new_ones(len(x), 1)
    top_k = weights.shape[1]
    by_choice = weights[:tokens].T[..., None]
    rows = outs[: tokens * top_k].unflatten(0, (tokens, top_k)).transpose(0, 1)
    whole = torch.zeros_like(by_choice[0])
    for weight in by_choice:
        whole = whole + weight
    whole = torch.where((whole - 1).abs() < _ROUNDING, 1, whole)
    last = rows[-1]
    total = add_up(by_choice[:-1].double() * (rows[:-1] - last), whole * last)
    scale = x.new_ones(tokens) if gate is None else sigmoid(gate[:tokens].flatten())
    x[:tokens] = add(scale[:, None].double() * total, x[:tokens])
