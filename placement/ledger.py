"""The ledger of a plan: what lies in each memory, term by term, in bytes, against its budget."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

import numpy as np

from .placed import Placement
from .shape import CPU, LayerShape, ModelShape, Product

MIB = 2**20
# Of each accelerator that is used: what its driver and libraries take, and what is left free, since a card that is full
# to the brim pages to the host and falls to a tenth of its speed.
CONTEXT_BYTES = 384 * MIB
HEADROOM_BYTES = 256 * MIB
KV_STAGING_BYTES = 32 * MIB  # through which blocks of the KV cache go to RAM and back, unless one needs more
RAM = "ram"
_SPAN = 64


@dataclass(frozen=True, slots=True)
class Term:
    """One thing that takes memory."""

    name: str
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The memory of one device: "ram", "gpu0" and so on. budget: what may be used of it."""

    device: str
    budget: int
    terms: tuple[Term, ...]

    @property
    def total(self) -> int:
        return sum(term.nbytes for term in self.terms)

    @property
    def free(self) -> int:
        """What is left of the budget; less than nothing where it is exceeded."""
        return self.budget - self.total

    def of(self, name: str) -> int:
        """Bytes of a term; 0 where there is none."""
        return sum(term.nbytes for term in self.terms if term.name == name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """What memory must hold beside weights and KV cache.

    runtime: RAM for Python, the tokenizer, compiled kernels and activations on the CPU; activations: of the largest
    step, on each device. staging: VRAM of each accelerator that layers are streamed into while prompts are computed.
    pinned: host memory that is handed to and from all accelerators. kv_offload: RAM of keys and values in all layers,
    those of the CPU's and copies of the accelerators'; kv_staging: VRAM of each accelerator that these go through.
    """

    runtime: int
    activations: int
    staging: tuple[int, ...] = ()
    pinned: int = 0
    kv_offload: int = 0
    kv_staging: int = 0

    @property
    def of_ram(self) -> int:
        return max(self.runtime, self.activations) + self.pinned + self.kv_offload

    def vram_terms(self, device: int) -> tuple[Term, ...]:
        """Of an accelerator that is used."""
        return (
            Term("prefill staging", self.staging[device]),
            Term("KV staging", self.kv_staging),
            Term("activations", self.activations),
            Term("accelerator context", CONTEXT_BYTES),
            Term("headroom", HEADROOM_BYTES),
        )

    def of_vram(self, device: int) -> int:
        return sum(term.nbytes for term in self.vram_terms(device))


def device_name(device: int) -> str:
    """Of an account: "ram" for the CPU, else "gpu" and the number."""
    return RAM if device == CPU else f"gpu{device}"


def kv_positions(shape: ModelShape, streams: int, context: int) -> int:
    """Positions that the pages of so many streams hold, each with so many tokens."""
    return streams * -(-max(context, 1) // shape.kv_block) * shape.kv_block


def kv_staging_blocks(block_bytes: int) -> int:
    """How many blocks of the KV cache go at once to RAM, or come back, while as many others are on their way."""
    return max(KV_STAGING_BYTES // (2 * _staged_bytes(block_bytes)), 1)


def kv_staging_bytes(block_bytes: int) -> int:
    """The most that this takes of an accelerator, and of pinned host memory, where some layers of a model are whose
    blocks take so many bytes in all layers."""
    return max(KV_STAGING_BYTES, 2 * _staged_bytes(block_bytes))


def _staged_bytes(block_bytes: int) -> int:
    """Of a block and its number."""
    return block_bytes + 8


def activation_bytes(shape: ModelShape, tokens: int, rows: int) -> int:
    """What a step of so many tokens passes from op to op, when `rows` of them want logits."""
    hidden, queries = _padded(shape.hidden_size), shape.num_heads * shape.head_dim
    keys = shape.num_kv_heads * shape.head_dim
    plain = 4 * (hidden + _padded(queries) + 2 * _padded(keys))
    routed = max((_branch_bytes(layer, hidden) for layer in shape.layers if layer.num_experts), default=0)
    others = max((_branch_bytes(layer, hidden) for layer in shape.layers if not layer.num_experts), default=0)
    experts = max((layer.num_experts for layer in shape.layers), default=0)
    scores = 4 * _padded(max(experts, 1)) + 4 * _padded(1)  # of the router and of the shared expert's gate
    logits = rows * 4 * _padded(shape.head.rows)
    return tokens * (plain + _forms(shape.hidden_size) + _forms(queries) + routed + others + scores) + logits


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What memory holds. positions: of the KV cache, in every layer. from_disk: of each layer, how many of the CPU's
    experts do not lie in RAM."""

    shape: ModelShape
    placement: Placement
    positions: int
    from_disk: tuple[int, ...] = ()

    def terms(self, device: int) -> tuple[Term, ...]:
        """Weights and KV cache on a device."""
        shape, placement = self.shape, self.placement
        own = [layer for layer, at in zip(shape.layers, placement.dense, strict=True) if at == device]
        has_head, shared = placement.head == device, shape.tied and placement.embed == placement.head
        dense = sum(layer.dense_bytes for layer in own) + (shape.vector_bytes if has_head else 0)
        return (
            Term("dense weights", dense),
            Term("experts", self._experts(device)),
            Term("embedding", shape.embed.nbytes if placement.embed == device else 0),
            Term("head", shape.head.nbytes if has_head and not shared else 0),
            Term("KV cache", sum(layer.kv_bytes for layer in own) * self.positions),
        )

    def _experts(self, device: int) -> int:
        total = 0
        for number, (layer, at) in enumerate(zip(self.shape.layers, self.placement.experts, strict=True)):
            elsewhere = self.from_disk[number] if device == CPU and self.from_disk else 0
            total += (int(np.count_nonzero(at == device)) - elsewhere) * layer.expert_bytes
        return total


def draw_up(load: Load, overheads: Overheads, ram: int, vram: tuple[int, ...]) -> tuple[Account, ...]:
    """The accounts of RAM and of each accelerator, of which `ram` and `vram` bytes may be used altogether."""
    terms = load.terms(CPU)
    kv = sum(term.nbytes for term in terms if term.name == "KV cache")
    offload = Term("KV offload", max(overheads.kv_offload - kv, 0))
    accounts = [_account(RAM, ram, terms, (offload,), _ram_terms(overheads))]
    for device, budget in enumerate(vram):
        fixed = overheads.vram_terms(device) if budget else ()
        accounts.append(_account(device_name(device), budget, load.terms(device), fixed))
    return tuple(accounts)


def _account(device: str, budget: int, *terms: Iterable[Term]) -> Account:
    return Account(device=device, budget=budget, terms=tuple(term for term in chain(*terms) if term.nbytes))


def _ram_terms(overheads: Overheads) -> Iterable[Term]:
    return [
        Term("activations", overheads.activations),
        Term("pinned host buffers", overheads.pinned),
        Term("Python and compiled kernels", max(overheads.runtime - overheads.activations, 0)),
    ]


def _branch_bytes(layer: LayerShape, hidden: int) -> int:
    """Of a token: inner activations and outputs of each chosen expert, and of the dense branch if there is one."""
    routed, dense = _inner(layer.expert), _inner(layer.dense)
    experts = layer.top_k * (_forms(routed) + 4 * hidden)
    return experts + (_forms(dense) + 4 * hidden if dense else 0)


def _inner(products: tuple[Product, ...]) -> int:
    return next((product.rows for product in products if product.role.rsplit(".", 1)[-1] == "up"), 0)


def _forms(columns: int) -> int:
    """A row as float32, as bfloat16, and in codes of 8 bits with their scales and sums, each in whole cache lines."""
    width = _padded(columns)
    return 6 * width + _padded(width + width // 16 * 7)


def _padded(columns: int) -> int:
    return -(-columns // _SPAN) * _SPAN
