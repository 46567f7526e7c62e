"""Hit rates of LRU caches of every size at once, by stack distance (Mattson and others, 1970).

An LRU cache of n slots holds what lies uppermost on a stack of all experts by their last use, so where an expert lies
when it is wanted says which caches have it. Sequences follow each other as they do in a daemon that keeps its cache; an
expert's first use ever is a miss at any size.
"""

import numpy as np
from numpy.typing import NDArray

RUN = 256  # tokens that are walked one by one; the runs of a sample are walked side by side


def layer_hits(sample: NDArray[np.uint16], num_experts: int) -> NDArray[np.float64]:
    """Hit rates [layers, experts + 1] of a cache of its own in each layer, by its number of slots.

    sample: as in RoutingTrace. A token's experts in a layer are looked up together, before any of them is taken in; of
    those the last is the most recent one afterwards.
    """
    depths = _depths(sample, num_experts)
    return np.stack([_rates(depths[:, layer], num_experts) for layer in range(sample.shape[1])])


def global_hits(sample: NDArray[np.uint16], num_experts: int) -> NDArray[np.float64]:
    """Hit rates [layers * experts + 1] of one cache for all layers, by its number of slots; as in `layer_hits`, a layer
    looks up its experts together."""
    tokens, layers, top_k = sample.shape
    everything = layers * num_experts
    numbered = sample + np.arange(layers)[:, None] * num_experts
    depths = _depths(numbered.reshape(tokens, 1, layers * top_k), everything).reshape(tokens, layers * top_k)
    # The stack is as it was before the token; by now its earlier layers have taken experts from below to the top.
    return _rates(depths + _raised_before(depths, layers), everything)


def _rates(depths: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    """The share of depths that are less than 0 .. size."""
    uses = np.bincount(depths.ravel(), minlength=size + 1)[:size]
    return np.concatenate(([0], np.cumsum(uses))) / max(depths.size, 1)


def _depths(refs: NDArray[np.integer], size: int) -> NDArray[np.int64]:
    """refs: [tokens, stacks, n], different numbers below `size` for each token and stack. How deep each of them lies in
    its stack before its token, [tokens, stacks, n]; `size` at the first use."""
    tokens, stacks, width = refs.shape
    runs = -(-tokens // RUN)
    padded = np.concatenate([refs, np.repeat(refs[-1:], runs * RUN - tokens, axis=0)]).astype(np.int64)
    # One row of slots for all stacks of all runs. slots: what lies where, as a place in that row.
    base = np.arange(runs * stacks).reshape(runs, stacks, 1) * size
    steps = padded.reshape(runs, RUN, stacks, width) + base[:, None]
    slots, used = _before_runs(steps, runs, stacks, size)
    slots += base
    depth_of = np.empty(runs * stacks * size, np.int64)
    keep = np.ones(runs * stacks * size, np.bool_)
    levels = np.broadcast_to(np.arange(size), slots.shape)
    depths = np.empty(steps.shape, np.int64)
    for step in range(RUN):
        wanted = steps[:, step]
        depth_of[slots] = levels
        depth = depth_of[wanted]
        keep[depth + base] = False
        slots[..., width:] = slots.ravel()[keep].reshape(runs, stacks, size - width)
        slots[..., :width] = wanted[..., ::-1]
        keep[depth + base] = True
        new = depth >= used  # what was never used lies below all that was
        used += np.count_nonzero(new, axis=-1, keepdims=True)
        depths[:, step] = np.where(new, size, depth)
    return depths.reshape(runs * RUN, stacks, width)[:tokens]


def _before_runs(
    steps: NDArray[np.int64], runs: int, stacks: int, size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The stacks before each run, [runs, stacks, size], and how many of each have been used, [runs, stacks, 1]."""
    last = np.full(runs * stacks * size, -1)
    last[steps.ravel()] = np.arange(steps.size)  # where numbers repeat, the last one stays
    last = np.maximum.accumulate(last.reshape(runs, stacks, size), axis=0)
    before = np.concatenate([np.full((1, stacks, size), -1), last[:-1]])
    return np.argsort(-before, axis=-1, kind="stable"), np.count_nonzero(before >= 0, axis=-1, keepdims=True)


def _raised_before(depths: NDArray[np.int64], layers: int) -> NDArray[np.int64]:
    """depths: [tokens, layers * n]. For each, how many of its token in earlier layers are deeper.

    From the deepest to the uppermost, those of the later half of the layers count those of the earlier half that came
    before; then each half by itself.
    """
    tokens, width = depths.shape
    order = np.argsort(-depths, axis=1, kind="stable")
    raised = np.zeros_like(depths)
    open_halves = [(0, layers, order)]
    while open_halves:
        first, end, indices = open_halves.pop()
        middle = (first + end) // 2
        if middle == first:
            continue
        late = indices >= middle * (width // layers)
        later = indices[late].reshape(tokens, -1)
        earlier = np.cumsum(~late, axis=1)[late].reshape(tokens, -1)
        rows = np.arange(tokens)[:, None]
        raised[rows, later] += earlier
        open_halves += [(first, middle, indices[~late].reshape(tokens, -1)), (middle, end, later)]
    return raised
