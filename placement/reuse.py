"""Reuse: how often a cache of recently used experts has what a token wants, beside experts that are pinned."""

import numpy as np
from numpy.typing import NDArray

from .options import Flags, Floats, Ints

TOKENS = 768  # of a sample that are replayed, the last ones


def hits_beside_pins(sample: NDArray[np.uint16], order: Ints, pinned: int, streams: int = 1) -> Floats:
    """float64 [layers, experts + 1]: a token's experts that are found in a cache for each layer, by its slots.

    sample: [tokens, layers, top_k]. order: [layers, experts], the hottest first; the first `pinned` are never in the
    cache, which begins with the hottest others. An expert is found if fewer others were used since than there are
    slots. A token's experts are looked up together. streams: so many parts of the sample take turns.
    """
    tokens = min(len(sample), TOKENS) // streams * streams
    layers, experts = order.shape
    turns = sample[len(sample) - tokens :].reshape(streams, -1, *sample.shape[1:]).swapaxes(0, 1)
    rank = np.argsort(order, axis=1)
    free = rank >= pinned
    last = np.where(free, -1 - rank, np.iinfo(np.int64).min)  # when each was last used
    found = np.zeros((layers, experts + 1))
    rows = np.arange(layers)[:, None]
    for turn, chosen in enumerate(turns.reshape(tokens, *sample.shape[1:]).astype(np.int64)):
        used = last[rows, chosen]
        depth = (last[:, None, :] > used[:, :, None]).sum(axis=2)
        np.add.at(found, (np.broadcast_to(rows, depth.shape), depth + 1), free[rows, chosen])
        _use(last, free, rows, chosen, turn)
    return np.cumsum(found, axis=1) / max(tokens, 1)


def _use(last: Ints, free: Flags, rows: Ints, chosen: Ints, turn: int) -> None:
    """Of a token's experts the last is the most recent."""
    width = chosen.shape[1]
    times = turn * width + np.arange(width)
    last[rows, chosen] = np.where(free[rows, chosen], times, last[rows, chosen])
