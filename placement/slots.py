"""Slots: how many experts of each layer accelerators could hold, spread evenly, in the memory that a plan has."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .placed import Placement
from .shape import ModelShape


def even_slots(
    shape: ModelShape, placement: Placement, free: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """int64 [MoE layers] each: an accelerator, and how many of the layer's experts fit there where the placement's, and
    what is free of each accelerator, make way for as many of every layer. Accelerators get layers in turn, by how much
    of that memory is theirs."""
    layers = [shape.layers[layer] for layer in shape.moe_layers]
    sizes = np.array([layer.expert_bytes for layer in layers], np.int64)
    where = [placement.experts[layer] for layer in shape.moe_layers]
    held = np.array([[int((own == card).sum()) for card in range(len(free))] for own in where], np.int64)
    room = sizes @ held.reshape(len(sizes), len(free)) + np.maximum(np.array(free, np.int64), 0)
    device, slots = np.zeros(len(sizes), np.int64), np.zeros(len(sizes), np.int64)
    if not room.any():
        return device, slots
    middles = np.cumsum(sizes) - sizes / 2
    device = np.searchsorted(np.cumsum(room) / room.sum() * sizes.sum(), middles, side="left").clip(0, len(free) - 1)
    for card in range(len(free)):
        mine = np.flatnonzero(device == card)
        slots[mine] = _filled(int(room[card]), sizes[mine], layers[0].num_experts)
    return device, slots


def _filled(room: int, sizes: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """How many of each size fit together, as alike as can be and at most `most`; the first get what is left over."""
    slots = np.full(len(sizes), min(most, room // max(int(sizes.sum()), 1)), np.int64)
    left = room - int(slots @ sizes)
    for place, size in enumerate(sizes.tolist()):
        if slots[place] < most and size <= left:
            slots[place] += 1
            left -= size
    return slots
