"""What one device takes for the parts of a step; `cpu_cost` and `accelerator_cost` know how. Times in milliseconds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from .hardware import FLOPS_PER_PAIR, Estimate
from .shape import LayerShape, ModelShape, Product

Floats = NDArray[np.float64]
Source = Literal["memory", "compute", "overlap", "fixed", "accelerator", "link"]
OF_CPU: tuple[Source, ...] = ("memory", "compute", "overlap", "fixed")
OF_ACCELERATORS: tuple[Source, ...] = ("accelerator", "link")
T = TypeVar("T")
VALUE_BYTES = 4  # of an activation on its way from device to device


class UnknownKindError(ValueError):
    """The hardware profile says nothing of a kind of weights or of keys and values; the message has the remedy."""


def known(table: Mapping[str, T], kind: str, what: str) -> T:
    """The entry of a profile's table. Raises UnknownKindError."""
    if kind not in table:
        raise UnknownKindError(
            f"the hardware profile has no {what} of kind {kind!r}, only {', '.join(sorted(table)) or 'none'}; run "
            "`isotherm calibrate` for this model, or choose a profile that has it"
        )
    return table[kind]


@dataclass(frozen=True, slots=True)
class Slower:
    """The estimates of one source are taken for slower than they are, by a standard deviation each.

    They were measured in the same minutes on the same machine, so they move together.
    """

    source: Source | None = None

    def time(self, estimate: Estimate, source: Source) -> float:
        return estimate.value * (1 + estimate.spread * (source == self.source))

    def rate(self, estimate: Estimate, source: Source) -> float:
        return estimate.value / (1 + estimate.spread * (source == self.source))


class DeviceCost(Protocol):
    """All in milliseconds."""

    @property
    def call_ms(self) -> float:
        """Of the experts of a layer, whatever is touched."""

    @property
    def launch_ms(self) -> float:
        """Of an op beside those of layers."""

    @property
    def replay_ms(self) -> float:
        """What is launched at once after activations came; nothing where ops are launched one by one."""

    @property
    def head_ms(self) -> float:
        """What the ops around the head take, whatever they compute."""

    def products_ms(self, products: tuple[Product, ...], tokens: int) -> float:
        """Of products with so many tokens, one after the other."""

    def expert_ms(self, products: tuple[Product, ...], most: int) -> Floats:
        """float64 [most + 1]: of an expert that 0 .. most tokens go to."""

    def ops_ms(self, layer: LayerShape) -> float:
        """What the layer's other ops take, whatever they compute."""

    def values_ms(self, shape: ModelShape, tokens: int) -> float:
        """Norms, rotations and sums of a layer."""

    def context_ms(self, shape: ModelShape, layer: LayerShape, streams: int, context: int) -> float:
        """Attention of one token of each stream."""

    def prompt_ms(self, shape: ModelShape, layer: LayerShape, start: int, tokens: int) -> float:
        """Attention of tokens of one sequence at positions from `start` on."""

    def sum_ms(self, hidden_size: int) -> float:
        """Adding up one output of an expert, where calls do not count that."""

    def send_ms(self, tokens: int, hidden_size: float) -> float:
        """Bringing activations there from the host."""

    def fetch_ms(self, tokens: int, hidden_size: float) -> float:
        """Bringing activations from there to the host."""


def branches(layer: LayerShape) -> int:
    """How many dense or shared feed-forward parts the layer has."""
    return sum(product.role.rsplit(".", 1)[-1] == "down" for product in layer.dense)


def visible(layer: LayerShape, position: int) -> int:
    """Positions that the token at a position sees, itself among them."""
    return position + 1 if layer.window is None else min(position + 1, layer.window)


def visible_pairs(layer: LayerShape, start: int, tokens: int) -> int:
    """Pairs of a token at `start` .. `start + tokens - 1` and a position that it sees."""
    first, last = start + 1, start + tokens
    if layer.window is None or last <= layer.window:
        return (first + last) * tokens // 2
    growing = max(layer.window - start, 0)  # tokens that see fewer positions than the window has, or just so many
    return (first + layer.window) * growing // 2 + (tokens - growing) * layer.window


def pair_flops(shape: ModelShape) -> int:
    """Operations of a token's heads for one position: q * k and p * v."""
    return FLOPS_PER_PAIR * shape.num_heads * shape.head_dim
