"""Reuse: how often a cache of recently used experts has what a token wants, beside experts that are pinned."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .options import Floats, Ints

TOKENS = 768  # of a sample that are replayed, the last ones


def hits_beside_pins(
    sample: NDArray[np.uint16], order: Ints, pinned: Sequence[int], streams: int = 1
) -> dict[int, Floats]:
    """For each number of pinned experts, float64 [layers, experts + 1]: a token's experts that are found in a cache for
    each layer, by its slots.

    sample: [tokens, layers, top_k]. order: [layers, experts], the hottest first; the pinned ones are never in the
    cache, which begins with the hottest others. An expert is found if fewer others were used since than there are
    slots. A token's experts are looked up together. streams: so many parts of the sample take turns.
    """
    tokens = min(len(sample), TOKENS) // streams * streams
    turns = sample[len(sample) - tokens :].reshape(streams, -1, *sample.shape[1:]).swapaxes(0, 1)
    ranks = np.argsort(order, axis=1)
    chosen = turns.reshape(tokens, *sample.shape[1:])
    pins = sorted(set(pinned))
    layers, experts = order.shape
    found = {each: np.zeros((layers, experts + 1)) for each in pins}
    for layer in range(layers):
        wanted = ranks[layer][chosen[:, layer]]
        for each, depths in zip(pins, _depths(wanted, experts, pins), strict=True):
            uses = np.bincount(depths[wanted >= each], minlength=experts)
            found[each][layer, 1:] = np.cumsum(uses) / max(tokens, 1)
    return found


def _depths(wanted: Ints, experts: int, pins: Sequence[int]) -> Ints:
    """[pins, tokens, top_k]: how many experts, but so many hottest ones, were used after each that is wanted was.
    wanted: [tokens, top_k], by rank of heat."""
    tokens, width = wanted.shape
    last = np.full((experts, tokens + 1), -experts, dtype=np.int32)  # when each was used before each token
    last[:, 0] = -1 - np.arange(experts)
    # Of a token's experts the last is the most recent.
    last[wanted, np.arange(1, tokens + 1)[:, None]] = np.arange(tokens * width).reshape(tokens, width)
    np.maximum.accumulate(last, axis=1, out=last)
    count = np.uint8 if experts < 256 else np.uint16  # the smaller, the faster
    depths = np.zeros((len(pins), tokens, width), dtype=np.int64)
    for place in range(width):
        used = last[wanted[:, place], np.arange(tokens)]
        later = (last[:, :-1] > used).view(np.uint8)
        above = np.add.reduceat(later, pins, axis=0, dtype=count)
        depths[:, :, place] = above[::-1].cumsum(axis=0, dtype=np.int64)[::-1]
    return depths
