"""Small models and round-numbered machines for the cost model, so that times can be worked out by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
from isotherm.placement.hardware import AcceleratorProfile, CpuProfile, Estimate, HardwareProfile, ProductCost
from isotherm.placement.shape import LayerShape, ModelShape, Product
from isotherm.placement.trace import PhaseCounts, RoutingTrace

HIDDEN, KIB = 1000, 1024


def product(role: str, kib: int, kind: str = "q4") -> Product:
    return Product(role=role, kind=kind, rows=100, columns=HIDDEN, nbytes=kib * KIB)


def layer(num_experts: int, top_k: int, **changes: Any) -> LayerShape:
    """Dense parts of 100, 20, 20 and 60 KiB; experts of three times 10 KiB; 1000 bytes of keys and values."""
    dense = tuple(product(role, kib) for role, kib in (("q", 100), ("k", 20), ("v", 20), ("o", 60)))
    expert = tuple(product(role, 10) for role in ("gate", "up", "down")) if num_experts else ()
    made = LayerShape(dense=dense, expert=expert, num_experts=num_experts, top_k=top_k, kv_bytes=1000)
    return replace(made, **changes)


def model(layers: int = 1, num_experts: int = 8, top_k: int = 2, **changes: Any) -> ModelShape:
    return ModelShape(
        name="small",
        fingerprint="00",
        layers=(layer(num_experts, top_k, **changes),) * layers,
        embed=product("embed", 1000),
        head=product("head", 1000),
        hidden_size=HIDDEN,
        num_heads=10,
        num_kv_heads=2,
        head_dim=50,
        kv_kind="int16",
        kv_block=16,
        max_context=4096,
    )


def cpu(spread: float = 0.0, **values: float) -> CpuProfile:
    """1 GB/s; 0.2, 0.3, 0.4, 0.5 us for a KiB with 1, 2, 4, 8 tokens; half of the shorter hides.

    values: call_us=10, expert_us=1, op_us=2, step_us=50, read_gb_s=1, token_ns_per_value=0.1 if not given.
    """
    given = {"call_us": 10, "expert_us": 1, "op_us": 2, "step_us": 50, "read_gb_s": 1, "token_ns_per_value": 0.1}
    given |= values
    each = {name: Estimate(value, spread) for name, value in given.items()}
    read = each.pop("read_gb_s")
    blocks = tuple(Estimate(value, spread) for value in (200, 300, 400, 500))
    return CpuProfile(
        name="round",
        tier="none",
        threads=1,
        cores=1,
        read_gb_s={1: read},
        products={"q4": ProductCost(read_gb_s=read, block_ns_per_kib=blocks, overlap=Estimate(0.5))},
        kv_gb_s={"int16": Estimate(2, spread)},
        attention_gops={"int16": Estimate(4, spread)},
        ram_bytes=1 << 34,
        free_bytes=1 << 34,
        **each,
    )


def accelerator(**values: float) -> AcceleratorProfile:
    """100 GB/s, 1 TFLOPS, launches of 1 us, hops of 5 us, a link of 10 GB/s, if not given."""
    given = {"read_gb_s": 100, "launch_us": 1, "hop_us": 5, "to_gb_s": 10, "from_gb_s": 10, "tflops": 1} | values
    each = {name: Estimate(value) for name, value in given.items()}
    return AcceleratorProfile(
        name="card",
        vram_bytes=1 << 30,
        free_bytes=1 << 30,
        tflops={"other": each.pop("tflops")},
        to_unpinned_gb_s=each["to_gb_s"],
        from_unpinned_gb_s=each["from_gb_s"],
        **each,
    )


def free_accelerator() -> AcceleratorProfile:
    """One that takes no time for anything."""
    return accelerator(read_gb_s=1e12, launch_us=0, hop_us=0, to_gb_s=1e12, from_gb_s=1e12, tflops=1e12)


def machine(*accelerators: AcceleratorProfile, spread: float = 0.0, **values: float) -> HardwareProfile:
    return HardwareProfile(
        name="round", nominal=True, source="made up", cpu=cpu(spread, **values), accelerators=accelerators
    )


def trace_of(chosen: list[list[list[int]]], num_experts: int, starts: list[int] | None = None) -> RoutingTrace:
    """The trace of decode tokens that chose so, [tokens][layers][top_k]; nothing was recorded of prompts."""
    sample = np.array(chosen, np.uint16)
    tokens, layers, top_k = sample.shape
    counts = np.stack([np.bincount(sample[:, i].ravel(), minlength=num_experts) for i in range(layers)]).astype(float)
    seen = PhaseCounts(
        counts=counts, mass=counts, tokens=np.full(layers, float(tokens)), steps=tokens, distinct=counts.sum(1)
    )
    nothing = PhaseCounts(
        counts=0 * counts, mass=0 * counts, tokens=np.zeros(layers), steps=0.0, distinct=np.zeros(layers)
    )
    return RoutingTrace(
        fingerprint="00",
        num_experts=num_experts,
        top_k=top_k,
        layers=tuple(range(layers)),
        phases={"prefill": nothing, "decode": seen},
        sample=sample,
        starts=np.array(starts or [0], np.int64),
    )
