"""From what was measured to the terms of the CPU's profile: numbers only."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..placement.cost import CostModel
from ..placement.fit import (
    ExpertTimes,
    ProductTimes,
    estimate,
    fit_experts,
    fit_product,
    fit_terms,
    in_general,
    steady_rounds,
)
from ..placement.hardware import FLOPS_PER_PAIR, LAYER_OPS, CpuProfile, Estimate, HardwareProfile, ProductCost
from ..placement.placed import Placement, Traffic
from ..placement.shape import ModelShape
from .calibrate_decoders import CONTEXT, PART, PART_START, PROMPT, SHORT, DecoderShapes, DecoderTimes, KvTimes

ROUTING_OPS = 2  # of the call of a MoE layer: the router's product and the choice
_NOTHING = Estimate(0.0)
_TURNS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """All that was measured in the same seconds. reads: GB/s by the number of threads, fewer than the machine's, those
    of which are in products and decoders. products: by kind."""

    reads: dict[int, float]
    experts: ExpertTimes
    products: dict[str, ProductTimes]
    decoders: DecoderTimes

    @property
    def plain_gb_s(self) -> list[float]:
        """Of plain reads on all threads, through the round."""
        beside = [times.plain for times in self.products.values()] + [kv.plain for kv in self.decoders.kv.values()]
        return [rate for plain in beside for rate in plain.reads]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What is known of the CPU without measuring."""

    name: str
    tier: str
    threads: int
    cores: int
    ram_bytes: int
    free_bytes: int


def cpu_profile(machine: Machine, rounds: Sequence[Round], shapes: DecoderShapes) -> CpuProfile:
    """The medians of the rounds, each of which is solved by itself.

    What comes from memory was measured beside plain reads, and is a share of their median through all rounds: where
    they varied more, it will.
    """
    solved = [_solve(machine, each, shapes) for each in rounds]
    first = solved[0]
    reads = {n: estimate([each.reads[n] for each in rounds]) for n in rounds[0].reads}
    plain = estimate([rate for each in rounds for rate in each.plain_gb_s])

    def varied(reading: Estimate) -> Estimate:
        return replace(reading, spread=max(reading.spread, plain.spread))

    def product(kind: str) -> ProductCost:
        cost = fit_product([each.products[kind] for each in rounds], plain.value)
        return replace(cost, read_gb_s=varied(cost.read_gb_s))

    def context(kv: str) -> Estimate:
        around = [each.decoders.kv[kv].plain for each in rounds]
        steady = steady_rounds(around)
        reads = [solved[number].kv_gb_s[kv].value for number in steady]
        return varied(in_general(reads, [around[number] for number in steady], plain.value))

    def median(name: str) -> Estimate:
        return estimate([getattr(profile, name).value for profile in solved])

    return replace(
        first,
        read_gb_s=reads | {machine.threads: plain},
        products={kind: product(kind) for kind in first.products},
        kv_gb_s={kv: context(kv) for kv in first.kv_gb_s},
        attention_gops={
            kv: estimate([profile.attention_gops[kv].value for profile in solved]) for kv in first.attention_gops
        },
        call_us=median("call_us"),
        expert_us=median("expert_us"),
        op_us=median("op_us"),
        step_us=median("step_us"),
        token_ns_per_value=median("token_ns_per_value"),
    )


def _solve(machine: Machine, measured: Round, shapes: DecoderShapes) -> CpuProfile:
    """The terms by one round, one after the other: each from what leaves only that one open."""
    call_us, expert_us = fit_experts(measured.experts)
    kv = measured.decoders.kv
    profile = CpuProfile(
        name=machine.name,
        tier=machine.tier,
        threads=machine.threads,
        cores=machine.cores,
        read_gb_s={},
        products={kind: fit_product([times], times.plain.gb_s) for kind, times in measured.products.items()},
        call_us=Estimate(call_us),
        expert_us=Estimate(expert_us),
        op_us=_NOTHING,
        step_us=_NOTHING,
        token_ns_per_value=_NOTHING,
        kv_gb_s={kind: Estimate(_kv_gb_s(times, shapes.kv[kind])) for kind, times in kv.items()},
        attention_gops={kind: Estimate(_attention_gops(times, shapes.kv[kind])) for kind, times in kv.items()},
        ram_bytes=machine.ram_bytes,
        free_bytes=machine.free_bytes,
    )
    for _ in range(_TURNS):  # a token's values are a little of a small decoder's time, and ops of a prompt's
        without = replace(profile, op_us=_NOTHING, step_us=_NOTHING, call_us=Estimate(call_us))
        op_us, step_us = _ops(without, measured.decoders, shapes)
        profile = replace(
            profile,
            op_us=Estimate(op_us),
            step_us=Estimate(step_us),
            call_us=Estimate(call_us + ROUTING_OPS * op_us),
        )
        token_ns = _token_ns(profile, measured.decoders, shapes)
        profile = replace(profile, token_ns_per_value=Estimate(token_ns))
    return profile


def _kv_gb_s(times: KvTimes, shape: ModelShape) -> float:
    """Where a long context takes no longer than a short one, as on a machine that was disturbed meanwhile, at most a
    hundredth of the time is taken for it."""
    longer = max(times.long - times.short, times.short / 100)
    return shape.kv_bytes * (CONTEXT - SHORT) / longer / 1e3


def _attention_gops(times: KvTimes, shape: ModelShape) -> float:
    """In the last layer only the last token attends."""
    pairs = PART * PART_START * (len(shape.layers) - 1)
    longer = max(times.later - times.first, times.first / 100)
    return FLOPS_PER_PAIR * shape.num_heads * shape.head_dim * pairs / longer / 1e3


def _ops(profile: CpuProfile, measured: DecoderTimes, shapes: DecoderShapes) -> tuple[float, float]:
    """Microseconds of an op, and of a step, by decoders with one layer and with more; the profile is without them."""
    traffic = Traffic(streams=1, context=SHORT)
    times = np.array([measured.one_layer, measured.layers])
    known = np.array(
        [
            CostModel(shape, _alone(profile)).decode(Placement.on_cpu(shape), traffic).step_ms * 1e3
            for shape in (shapes.one_layer, shapes.layers)
        ]
    )
    ops = (LAYER_OPS + ROUTING_OPS) * np.array([len(shapes.one_layer.layers), len(shapes.layers.layers)])
    left = np.maximum(times - known, 0.0)
    op_us, step_us = fit_terms(np.stack([ops, np.ones(2)], axis=1), left, times)
    return float(op_us), float(step_us)


def _token_ns(profile: CpuProfile, measured: DecoderTimes, shapes: DecoderShapes) -> float:
    """Nanoseconds by what is left of a prompt's time."""
    profile = replace(profile, token_ns_per_value=_NOTHING)
    shape, traffic = shapes.wide, Traffic(prompt=PROMPT, chunk=PROMPT)
    known = CostModel(shape, _alone(profile)).prefill(Placement.on_cpu(shape), traffic).step_ms * 1e6
    return max(measured.prompt * 1e3 - known, 0.0) / (PROMPT * shape.hidden_size * len(shape.layers))


def _alone(profile: CpuProfile) -> HardwareProfile:
    return HardwareProfile(name=profile.name, nominal=False, source="", cpu=profile)
