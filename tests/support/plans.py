"""A model of some GiB on a machine with cards, a planner that is easy to follow, and plans made of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from isotherm.placement.cost import CostModel
from isotherm.placement.draft import Wish, draft
from isotherm.placement.hardware import Estimate, HardwareProfile
from isotherm.placement.placed import Placement, Traffic
from isotherm.placement.plan import Plan
from isotherm.placement.planner import Budgets, Considered, Planned
from isotherm.placement.shape import CPU, ModelShape
from isotherm.placement.solve import Infeasible, Solution
from support.cost_cases import accelerator, machine, model, product

GIB, MIB = 2**30, 2**20
KINDS = ("q4", "q8", "f32")


def large(layers: int = 4, **changes: Any) -> ModelShape:
    """Layers of 64 MiB of dense weights and 8 experts of 96 MiB; 64 MiB of embedding and of head; 4 KiB of KV."""
    expert = tuple(product(role, 32 << 10) for role in ("gate", "up", "down"))
    dense = tuple(product(role, 16 << 10) for role in "qkvo")
    shape = model(layers, dense=dense, expert=expert, kv_bytes=4096)
    values = {
        "name": "large",
        "fingerprint": "ab" * 32,
        "embed": product("embed", 64 << 10),
        "head": product("head", 64 << 10),
    }
    return replace(shape, **values | changes)


def with_cards(*sizes: int, free_bytes: int = 16 * GIB) -> HardwareProfile:
    """A machine with cards of these bytes; its CPU knows KINDS."""
    hardware = machine(*(replace(accelerator(), vram_bytes=size, free_bytes=size) for size in sizes))
    one = hardware.cpu.products["q4"]
    caches = {
        name: dict.fromkeys(("int16", "int8"), getattr(hardware.cpu, name)["int16"])
        for name in ("kv_gb_s", "attention_gops")
    }
    products = dict.fromkeys(KINDS, one)
    cpu = replace(hardware.cpu, products=products, free_bytes=free_bytes, read_gb_s={1: Estimate(1.0)}, **caches)
    return replace(hardware, cpu=cpu)


def layers_first(cost: CostModel, traffic: Traffic, budgets: Budgets, kv_positions: int) -> Planned:
    """Whole layers in turn onto the cards while they fit, then experts of the next; the rest stays on the CPU."""
    shape, room = cost.shape, list(budgets.vram)
    dense, experts, device = [], [], 0
    for layer in shape.layers:
        fixed = layer.dense_bytes + kv_positions * layer.kv_bytes
        while device < len(room) and room[device] < fixed:
            device += 1
        at = np.full(layer.num_experts, CPU, np.int8)
        dense.append(device if device < len(room) else CPU)
        if device < len(room):
            room[device] -= fixed
            count = min(layer.num_experts, room[device] // max(layer.expert_bytes, 1))
            at[:count] = device
            room[device] -= count * layer.expert_bytes
        experts.append(at)
    placement = Placement(dense=tuple(dense), experts=tuple(experts), embed=CPU, head=CPU)
    missing = bytes_on_cpu(shape, placement, kv_positions) - budgets.ram
    if missing > 0:
        raise Infeasible((*(0 for _ in budgets.vram), missing))
    ms = cost.decode(placement, traffic).step_ms
    considered = [("layers first", ms, ""), ("nothing", ms + 1, "as a test"), ("adaptive", None, "no trace")]
    return Planned(
        placement=placement,
        policy="layers first",
        solution=Solution(np.zeros(0, np.int64), ms, ms, np.zeros(len(room) + 1)),
        prices_ms_per_gib=(*(2.5 for _ in room), 0.0),
        considered=tuple(Considered(policy=name, step_ms=ms, note=note) for name, ms, note in considered),
        reason="it is easy to follow.",
        slots=(0,) * len(shape.layers),
        from_disk=(0,) * len(shape.layers),
        disk_ms=0.0,
    )


def bytes_on_cpu(shape: ModelShape, placement: Placement, positions: int) -> int:
    total = shape.embed.nbytes + shape.head.nbytes
    for layer, dense, experts in zip(shape.layers, placement.dense, placement.experts, strict=True):
        total += (layer.dense_bytes + positions * layer.kv_bytes) * (dense == CPU)
        total += int((experts == CPU).sum()) * layer.expert_bytes
    return total


def wish(vram: Sequence[int] = (), **changes: Any) -> Wish:
    values = {"traffic": Traffic(context=1024), "context": 1024, "positions": 1024, "ram": 16 * GIB}
    return Wish(**values | {"vram": tuple(vram)} | changes)


def plan_of(vram: Sequence[int] = (), shape: ModelShape | None = None, **changes: Any) -> Plan:
    cost = CostModel(shape or large(), with_cards(*(24 * GIB for _ in vram)))
    return draft(cost, wish(vram, **changes), trace_name="none", planner=layers_first)
