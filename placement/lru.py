"""Hit rates of LRU caches of every size at once, by stack distance (Mattson and others, 1970)."""

import numpy as np
from numpy.typing import NDArray


def layer_hits(sample: NDArray[np.uint16], num_experts: int) -> NDArray[np.float64]:
    """Hit rates [layers, experts + 1] of a cache of its own in each layer, by its number of slots.

    sample: as in RoutingTrace. A token's experts in a layer are looked up together, before any of them is taken in.
    """
    raise NotImplementedError


def global_hits(sample: NDArray[np.uint16], num_experts: int) -> NDArray[np.float64]:
    """Hit rates [layers * experts + 1] of one cache for all layers, by its number of slots."""
    raise NotImplementedError
