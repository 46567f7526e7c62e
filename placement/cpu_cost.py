"""What the CPU engine takes for the parts of a step, from its profile."""

import numpy as np
from numpy.typing import NDArray

from .device_cost import Floats, Slower, branches, known, pair_flops, visible, visible_pairs
from .hardware import BLOCKS, BRANCH_OPS, LAYER_OPS, CpuProfile
from .product_sums import ProductSums
from .shape import LayerShape, ModelShape, Product


class CpuCost(ProductSums):
    """See `device_cost.DeviceCost`."""

    def __init__(self, profile: CpuProfile, slower: Slower) -> None:
        super().__init__(slower.time(profile.expert_us, "fixed") / 1e3)
        self._profile, self._slower = profile, slower
        self._kib_ns: dict[tuple[str, int], Floats] = {}

    @property
    def call_ms(self) -> float:
        return self._slower.time(self._profile.call_us, "fixed") / 1e3

    @property
    def launch_ms(self) -> float:
        return 0.0  # a part of the step's

    @property
    def replay_ms(self) -> float:
        return 0.0

    @property
    def head_ms(self) -> float:
        return 0.0

    @property
    def step_ms(self) -> float:
        """Of a step, before and after its ops."""
        return self._slower.time(self._profile.step_us, "fixed") / 1e3

    def product_ms(self, product: Product, tokens: NDArray[np.int64]) -> Floats:
        """As it says there, and as `ProductCost.us`."""
        cost = known(self._profile.products, product.kind, "products")
        reading = product.nbytes / self._slower.rate(cost.read_gb_s, "memory") / 1e6
        first, others = product.nbytes / 1024e6 * self._block_ns(product.kind, int(tokens.max()))[:, tokens]
        overlap = self._slower.rate(cost.overlap, "overlap")
        times: Floats = np.maximum(reading, first) + (1 - overlap) * np.minimum(reading, first) + others
        return times

    def _block_ns(self, kind: str, most: int) -> Floats:
        """float64 [2, most + 1]: of 0 .. most tokens for a KiB of weights in cache: their first block, the others."""
        if (kind, most) not in self._kib_ns:
            estimates = known(self._profile.products, kind, "products").block_ns_per_kib
            by_size = {n: self._slower.time(each, "compute") for n, each in zip(BLOCKS, estimates, strict=True)}
            tokens = np.arange(most + 1)
            rest = sum((by_size[size] * (tokens & size > 0) for size in (4, 2, 1)), np.zeros(most + 1))
            largest = np.minimum(2 ** np.floor(np.log2(np.maximum(tokens, 1))), 8).astype(np.int64)
            first = np.where(tokens > 0, np.array([by_size.get(n, 0.0) for n in range(9)])[largest], 0.0)
            self._kib_ns[kind, most] = np.stack([first, tokens // 8 * by_size[8] + rest - first])
        return self._kib_ns[kind, most]

    def memory_ms(self, nbytes: float) -> float:
        """Reading so many bytes by all that reads the memory, whatever becomes of them."""
        rate = self._slower.rate(self._profile.read_gb_s[max(self._profile.read_gb_s)], "memory")
        return nbytes / rate / 1e6

    def ops_ms(self, layer: LayerShape) -> float:
        ops = LAYER_OPS + BRANCH_OPS * branches(layer)
        return ops * self._slower.time(self._profile.op_us, "fixed") / 1e3

    def values_ms(self, shape: ModelShape, tokens: int) -> float:
        return tokens * shape.hidden_size * self._slower.time(self._profile.token_ns_per_value, "compute") / 1e6

    def context_ms(self, shape: ModelShape, layer: LayerShape, streams: int, context: int) -> float:
        rate = known(self._profile.kv_gb_s, shape.kv_kind, "attention over a KV cache")
        read = streams * visible(layer, context) * layer.kv_bytes
        return read / self._slower.rate(rate, "memory") / 1e6

    def prompt_ms(self, shape: ModelShape, layer: LayerShape, start: int, tokens: int) -> float:
        rate = known(self._profile.attention_gops, shape.kv_kind, "attention over a KV cache")
        flops = pair_flops(shape) * visible_pairs(layer, start, tokens)
        return flops / self._slower.rate(rate, "compute") / 1e6

    def sum_ms(self, hidden_size: int) -> float:
        return 0.0

    def send_ms(self, tokens: int, hidden_size: float) -> float:
        return 0.0

    def fetch_ms(self, tokens: int, hidden_size: float) -> float:
        return 0.0
