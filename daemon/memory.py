"""Whether a model fits: the memory plan of a load, made from shapes before any weight is read."""

import math
from collections.abc import Collection
from dataclasses import dataclass

from ..cpu_kernels.kv_layout import part_bytes
from ..placement.shape import ModelShape

GIB = 2**30
RESERVE = GIB // 2  # left free for Python, the tokenizer, activations and everything else on the machine
# What the KV cache takes unless told otherwise: so many requests of full length, but no more than this share of what
# the weights leave, and at least one request.
AUTO_CONTEXTS = 4
AUTO_SHARE = 0.25


class MemoryPlanError(RuntimeError):
    """The model does not fit into memory; the message has the numbers and the smallest change that would fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a load asks for, in bytes and positions.

    kv_bytes None: as much as is useful. int8_bytes: what a block would take in int8, if it is to be of another kind.
    device_bytes: what accelerators hold of a block of the cache, and RAM does not.
    """

    weight_bytes: int
    block_bytes: int
    block_size: int
    context: int
    kv_bytes: int | None = None
    int8_bytes: int | None = None
    device_bytes: int = 0

    @property
    def ram_bytes(self) -> int:
        """What RAM holds of a block."""
        return self.block_bytes - self.device_bytes

    @property
    def context_blocks(self) -> int:
        """Blocks of one request that fills the context."""
        return -(-self.context // self.block_size)


def demand_of(
    shape: ModelShape, context: int, kv_bytes: int | None = None, device_layers: Collection[int] = ()
) -> Demand:
    """What a model asks for whose weights all lie in RAM. device_layers: whose keys and values do not."""
    int8 = len(shape.layers) * shape.num_kv_heads * part_bytes("int8", shape.head_dim)
    return Demand(
        weight_bytes=shape.nbytes,
        block_bytes=shape.kv_bytes * shape.kv_block,
        block_size=shape.kv_block,
        context=context,
        kv_bytes=kv_bytes,
        int8_bytes=None if shape.kv_kind == "int8" else int8,
        device_bytes=sum(shape.layers[layer].kv_bytes for layer in device_layers) * shape.kv_block,
    )


def plan_blocks(demand: Demand, free_bytes: int) -> int:
    """How many KV blocks to allocate so that weights and cache fit into `free_bytes`. Raises MemoryPlanError."""
    left = free_bytes - RESERVE - demand.weight_bytes
    if left < demand.ram_bytes:
        raise MemoryPlanError(
            f"the packed weights need {_gib(demand.weight_bytes)}, but only {_gib(max(free_bytes - RESERVE, 0))} of "
            f"memory can be used; free {_gib(demand.weight_bytes + demand.ram_bytes - free_bytes + RESERVE)} more, "
            "or serve a smaller model or one with fewer bits per weight"
        )
    if demand.kv_bytes is not None:
        return _told(demand, left)
    needed = demand.context_blocks * demand.block_bytes
    if needed > left:
        raise MemoryPlanError(
            f"a request of {demand.context} tokens needs {_gib(needed)} of KV cache, but beside the packed weights "
            f"({_gib(demand.weight_bytes)}) only {_gib(left)} can be used; {_remedy(demand, left)}"
        )
    useful = demand.context_blocks * AUTO_CONTEXTS
    return max(demand.context_blocks, min(useful, int(left * AUTO_SHARE) // demand.block_bytes))


def plan_offload(demand: Demand, blocks: int, offload_bytes: int, free_bytes: int) -> int:
    """How many KV blocks there are in all where RAM has room for their keys and values in every layer, and accelerators
    for `blocks` in theirs. Raises MemoryPlanError."""
    left = max(free_bytes - RESERVE - demand.weight_bytes, 0)
    count, told = offload_bytes // demand.block_bytes, f"--kv-offload-gib {offload_bytes / GIB:g}"
    if count <= blocks:
        raise MemoryPlanError(
            f"{told} holds {count * demand.block_size} tokens, no more than the {blocks * demand.block_size} that "
            f"accelerators have room for; give it more than {_ceil(blocks * demand.block_bytes)}, or leave it out"
        )
    if offload_bytes > left:
        fits = f"{_floor(left)} would, or " if left > (blocks + 1) * demand.block_bytes else ""
        raise MemoryPlanError(
            f"{told} does not fit beside the packed weights ({_gib(demand.weight_bytes)}); {fits}leave it out"
        )
    return count


def _told(demand: Demand, left: int) -> int:
    assert demand.kv_bytes is not None
    blocks = demand.kv_bytes // demand.block_bytes
    if blocks * demand.ram_bytes > left:
        raise MemoryPlanError(
            f"a KV cache of {_gib(demand.kv_bytes)} does not fit beside the packed weights "
            f"({_gib(demand.weight_bytes)}); --kv-gib {_floor(left * demand.block_bytes // demand.ram_bytes)} would"
        )
    if blocks < demand.context_blocks:
        shorter = f"--context {blocks * demand.block_size} would fit, or " if blocks else "give it "
        raise MemoryPlanError(
            f"a KV cache of {_gib(demand.kv_bytes)} holds {blocks * demand.block_size} tokens, less than a request of "
            f"{demand.context}; {shorter}--kv-gib {_ceil(demand.context_blocks * demand.block_bytes)}"
        )
    return blocks


def _remedy(demand: Demand, left: int) -> str:
    if demand.int8_bytes is not None and demand.context_blocks * demand.int8_bytes <= left:
        return "--kv-cache int8 would fit"
    return f"--context {left // demand.block_bytes * demand.block_size} would fit"


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"


def _floor(size: int) -> float:
    return math.floor(size / GIB * 100) / 100


def _ceil(size: int) -> float:
    return math.ceil(size / GIB * 100) / 100
