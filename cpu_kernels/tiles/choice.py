"""Which product and row reader a program calls for a kind: the best tier's, or a narrower one's in its place."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..features import Tier, host_tier
from ..jit import PRODUCT_SIGNATURE, READER_SIGNATURE, address_of, passing_kernel
from . import PRODUCTS, READERS, product_address, reader_address
from .dot import dot_tile
from .floats import FLOATS, dot_floats
from .unpack import unpack_row

Part = Literal["product", "reader"]


@dataclass(frozen=True, slots=True)
class TileKernel:
    """A compiled product or row reader (see `tiles`), for a kind. The address is good as long as this lives."""

    part: Part
    kind: str
    tier: Tier
    address: int
    compiled: Any

    def __str__(self) -> str:
        return f"{self.kind} {self.part} of {self.tier.name}"


def tile_kernel(part: Part, kind: str, tier: Tier) -> TileKernel:
    """The kernel for a tier that this machine has; compiled anew, unless that is its best one."""
    compiled = (PRODUCTS if part == "product" else READERS)[kind]
    if tier != host_tier():
        compiled = _narrow_product(kind, tier) if part == "product" else _narrow_reader(kind, tier)
    signature = PRODUCT_SIGNATURE if part == "product" else READER_SIGNATURE
    return TileKernel(part, kind, tier, address_of(compiled, signature), compiled)


def _narrow_product(kind: str, tier: Tier) -> Any:
    dot = (dot_floats if kind in FLOATS else dot_tile)(kind, tier)

    @passing_kernel
    def product(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
        dot(count, w, spans, rows, out, stride)

    return product


def _narrow_reader(kind: str, tier: Tier) -> Any:
    unpack = unpack_row(kind, tier)

    @passing_kernel
    def reader(tile: int, lane: int, spans: int, out: int) -> None:
        unpack(tile, lane, spans, out)

    return reader


@dataclass(frozen=True, slots=True)
class TileKernels:
    """The kernels that were chosen, by part and kind; for others the best tier's. Must outlive who holds addresses."""

    chosen: Mapping[tuple[Part, str], TileKernel] = field(default_factory=dict)

    def product(self, kind: str) -> int:
        """The address of a kind's product."""
        kernel = self.chosen.get(("product", kind))
        return kernel.address if kernel else product_address(kind)

    def reader(self, kind: str) -> int:
        """The address of a kind's row reader."""
        kernel = self.chosen.get(("reader", kind))
        return kernel.address if kernel else reader_address(kind)

    @property
    def replaced(self) -> dict[str, str]:
        """By kernel ("q4 product") the tier that stands in for the best one."""
        best = host_tier()
        return {f"{k.kind} {k.part}": k.tier.name for k in self.chosen.values() if k.tier != best}
