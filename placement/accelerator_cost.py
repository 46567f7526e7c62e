"""What an accelerator takes for the parts of a step, from its profile: its memory, its arithmetic, or its launches.

While decoding, what it does between two points at which the host must act is one launch: a replay. It begins where
activations come there, and where the outputs of a layer's experts have come from other devices.
"""

import numpy as np
from numpy.typing import NDArray

from .device_cost import VALUE_BYTES, Floats, Slower, branches, pair_flops, visible, visible_pairs
from .hardware import BRANCH_OPS, AcceleratorProfile
from .product_sums import ProductSums
from .shape import LayerShape, ModelShape, Product

EXPERT_OPS = 4  # of the experts of a layer: group, gate and up, down, sum
_HEAD_LAUNCHES = 4  # norm and product, and two by which tokens are left out whose logits nobody wants
_LAYER_LAUNCHES = 10  # of each layer: norm, q, k, v, rotate, store, attend, its record, output, norm
_OF_ROUTING = ("router", "shared_gate")  # products that are launched beside these, and the choice by the router's


class AcceleratorCost(ProductSums):
    """See `device_cost.DeviceCost`. replays: it is decoding."""

    def __init__(self, profile: AcceleratorProfile, slower: Slower, *, replays: bool = False) -> None:
        super().__init__()
        self._profile, self._slower, self._replays = profile, slower, replays
        self._read = slower.rate(profile.read_gb_s, "accelerator")
        self._launch_ms = slower.time(profile.launch_us, "accelerator") / 1e3

    @property
    def call_ms(self) -> float:
        return (1 if self._replays else EXPERT_OPS) * self._launch_ms

    @property
    def launch_ms(self) -> float:
        return self._launch_ms

    @property
    def replay_ms(self) -> float:
        return self._launch_ms if self._replays else 0.0

    @property
    def head_ms(self) -> float:
        return 0.0 if self._replays else _HEAD_LAUNCHES * self._launch_ms

    def product_ms(self, product: Product, tokens: NDArray[np.int64]) -> Floats:
        computing = 2.0 * product.rows * product.columns * tokens / self._tflops(product.kind) / 1e9
        times: Floats = np.maximum(product.nbytes / self._read / 1e6, computing)
        return times

    def _tflops(self, kind: str) -> float:
        table = self._profile.tflops
        return self._slower.rate(table[kind] if kind in table else table["other"], "accelerator")

    def ops_ms(self, layer: LayerShape) -> float:
        if self._replays:
            return 0.0
        chosen = [product for product in layer.dense if product.role in _OF_ROUTING]
        routing = len(chosen) + any(product.role == "router" for product in chosen)
        return (_LAYER_LAUNCHES + BRANCH_OPS * branches(layer) + routing) * self._launch_ms

    def values_ms(self, shape: ModelShape, tokens: int) -> float:
        q, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        two_norms, turning, storing, recording = 4 * shape.hidden_size, 2 * (q + kv), 4 * kv, 2 * q  # read and written
        return VALUE_BYTES * tokens * (two_norms + turning + storing + recording) / self._read / 1e6

    def context_ms(self, shape: ModelShape, layer: LayerShape, streams: int, context: int) -> float:
        pairs = streams * visible(layer, context)
        return max(pairs * layer.kv_bytes / self._read, pairs * pair_flops(shape) / self._tflops("other") / 1e3) / 1e6

    def prompt_ms(self, shape: ModelShape, layer: LayerShape, start: int, tokens: int) -> float:
        read = visible(layer, start + tokens - 1) * layer.kv_bytes / self._read / 1e6
        return max(read, pair_flops(shape) * visible_pairs(layer, start, tokens) / self._tflops("other") / 1e9)

    def sum_ms(self, hidden_size: int) -> float:
        return 2 * VALUE_BYTES * hidden_size / self._read / 1e6

    def send_ms(self, tokens: int, hidden_size: float) -> float:
        return self._hop_ms() + self.weights_ms(VALUE_BYTES * tokens * hidden_size)

    def fetch_ms(self, tokens: int, hidden_size: float) -> float:
        rate = self._slower.rate(self._profile.from_gb_s, "link")
        return self._hop_ms() + VALUE_BYTES * tokens * hidden_size / rate / 1e6

    def weights_ms(self, nbytes: float) -> float:
        """Bringing so many bytes there from pinned memory."""
        return nbytes / self._slower.rate(self._profile.to_gb_s, "link") / 1e6

    def _hop_ms(self) -> float:
        return self._slower.time(self._profile.hop_us, "link") / 1e3
