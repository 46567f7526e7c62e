"""A machine whose terms are known, and what would be measured of it."""

from isotherm.daemon.calibrate_decoders import (
    CONTEXT,
    PART,
    PART_START,
    PROMPT,
    SHORT,
    DecoderShapes,
    DecoderTimes,
    KvTimes,
)
from isotherm.daemon.calibrate_terms import ROUTING_OPS, Machine, Round
from isotherm.placement.cost import CostModel
from isotherm.placement.fit import ExpertTimes, Plain, ProductTimes
from isotherm.placement.hardware import BLOCKS, FLOPS_PER_PAIR, CpuProfile, Estimate, HardwareProfile, ProductCost
from isotherm.placement.placed import Placement, Traffic
from isotherm.placement.shape import LayerShape, ModelShape, Product

PLAIN = 38.0  # GB/s
NEAR = {1: 8.0, 2: 12.0, 4: 21.0, 8: 40.0}
MACHINE = Machine(name="made up", tier="avx2", threads=2, cores=2, ram_bytes=1 << 34, free_bytes=1 << 33)
CALL, EXPERT, OP, STEP, TOKEN, KV, GOPS = 5.0, 0.7, 1.5, 40.0, 2.0, 20.0, 300.0


def shape(layers: int, hidden: int) -> ModelShape:
    def product(role: str, rows: int) -> Product:
        return Product(role=role, kind="q4", rows=rows, columns=hidden, nbytes=rows * hidden * 9 // 16)

    layer = LayerShape(
        dense=tuple(product(role, hidden) for role in ("q", "k", "v", "o", "router")),
        expert=tuple(product(role, hidden // 2) for role in ("gate", "up", "down")),
        num_experts=8,
        top_k=2,
        kv_bytes=2048,
    )
    return ModelShape(
        name="made up",
        fingerprint="",
        layers=(layer,) * layers,
        embed=product("embed", 64),
        head=product("head", 64),
        hidden_size=hidden,
        num_heads=8,
        num_kv_heads=2,
        head_dim=64,
        kv_kind="int16",
        kv_block=16,
        max_context=1 << 15,
    )


SHAPES = DecoderShapes(one_layer=shape(1, 256), layers=shape(8, 256), wide=shape(4, 1024), kv={"int16": shape(2, 1024)})


def known(**changes: float) -> CpuProfile:
    terms = {"op_us": OP, "step_us": STEP, "token_ns_per_value": TOKEN, "expert_us": EXPERT} | changes
    cost = ProductCost(
        read_gb_s=Estimate(36.0),
        block_ns_per_kib=tuple(map(Estimate, NEAR.values())),
        overlap=Estimate(1.0),
    )
    return CpuProfile(
        name="made up",
        tier="avx2",
        threads=2,
        cores=2,
        read_gb_s={1: Estimate(20.0), 2: Estimate(PLAIN)},
        products={"q4": cost},
        call_us=Estimate(CALL + ROUTING_OPS * terms["op_us"]),
        kv_gb_s={"int16": Estimate(KV)},
        attention_gops={"int16": Estimate(GOPS)},
        ram_bytes=1 << 34,
        free_bytes=1 << 33,
        **{name: Estimate(value) for name, value in terms.items()},
    )


def measured(profile: CpuProfile) -> Round:
    """What a machine with this profile takes."""

    def model(of: ModelShape) -> CostModel:
        return CostModel(of, HardwareProfile(name="", nominal=False, source="", cpu=profile))

    def token_us(of: ModelShape) -> float:
        placement = Placement.on_cpu(of)
        return model(of).decode(placement, Traffic(streams=1, context=SHORT)).step_ms * 1e3

    wide, kv = SHAPES.wide, SHAPES.kv["int16"]
    prompt = model(wide).prefill(Placement.on_cpu(wide), Traffic(prompt=PROMPT, chunk=PROMPT)).step_ms * 1e3
    read_us = kv.kv_bytes * (CONTEXT - SHORT) / profile.kv_gb_s["int16"].value / 1e3
    flops = FLOPS_PER_PAIR * kv.num_heads * kv.head_dim * PART * PART_START  # in one layer of two
    attend_us = flops / profile.attention_gops["int16"].value / 1e3
    cost = profile.products["q4"]
    near_ns = 110 * NEAR[1]
    return Round(
        reads={1: 20.0},
        experts=ExpertTimes(near_ns, {n: CALL + n * (EXPERT + near_ns / 1e3) for n in (1, 2, 4, 8, 16, 32)}),
        products={"q4": ProductTimes({n: cost.us(1024, n) * 1e3 for n in BLOCKS}, NEAR, Plain((PLAIN,)))},
        decoders=DecoderTimes(
            one_layer=token_us(SHAPES.one_layer),
            layers=token_us(SHAPES.layers),
            prompt=prompt,
            kv={
                "int16": KvTimes(
                    short=900.0, long=900.0 + read_us, first=7000.0, later=7000.0 + attend_us, plain=Plain((PLAIN,))
                )
            },
        ),
    )
