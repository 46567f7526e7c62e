"""Decoders of a few layers with random weights that stand for any model where a machine is measured."""

from collections.abc import Callable
from dataclasses import replace

from ..cpu_kernels.seating import Seating
from ..placement.shape import ModelShape
from .outline import shape_of_slots
from .pack import PackedWeights
from .random_model import random_model, random_slots
from .roles import role_shapes
from .spec import ModelSpec, RopeSpec, RoutingSpec

ROUTER_KIND = "f32"
_HEAD_DIM = 128
_FREQUENCIES = tuple(10_000.0 ** (-2 * i / _HEAD_DIM) for i in range(_HEAD_DIM // 2))


def wide_spec(context: int) -> ModelSpec:
    """Layers as wide as those of models: what a prompt and a long context take outweighs the calls of ops."""
    return _spec(context, layers=4, hidden=2048, heads=(32, 4), experts=(32, 8), inner=768)


def small_spec(context: int) -> ModelSpec:
    """Layers that lie in cache: much of their time is that of the step and its ops by themselves."""
    return _spec(context, layers=8, hidden=256, heads=(2, 1), experts=(8, 2), inner=64)


def first_layers(spec: ModelSpec, layers: int) -> ModelSpec:
    """The same decoder with fewer layers."""
    return replace(spec, num_layers=layers, moe_layers=spec.moe_layers[:layers])


def random_decoder(spec: ModelSpec, kind: str, seating: Seating) -> PackedWeights:
    """Its weights: all of one kind but the routers. Tokens differ in the experts that they go to."""
    return random_model(role_shapes(spec, ()), _kinds(kind), seating)


def random_shape(spec: ModelSpec, kind: str, kv_kind: str) -> ModelShape:
    """What placement needs to know of a decoder with weights of that kind; kv_kind: numbers of its KV cache."""
    slots = random_slots(role_shapes(spec, ()), _kinds(kind))
    return shape_of_slots(spec, slots, kv_kind, name=spec.architecture, fingerprint="")


def _kinds(kind: str) -> Callable[[str], str]:
    """The packed kind of each role."""
    return lambda role: ROUTER_KIND if role.endswith(".router") else kind


def _spec(
    context: int, *, layers: int, hidden: int, heads: tuple[int, int], experts: tuple[int, int], inner: int
) -> ModelSpec:
    """heads: of queries, of keys and values. experts: all of them, and how many a token goes to."""
    return ModelSpec(
        architecture="random",
        num_layers=layers,
        hidden_size=hidden,
        vocab_size=1024,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=_HEAD_DIM,
        rms_eps=1e-6,
        rope=RopeSpec(inverse_frequencies=_FREQUENCIES),
        max_context=context,
        qk_norm="head",
        moe_layers=(True,) * layers,
        routing=RoutingSpec(num_experts=experts[0], top_k=experts[1]),
        moe_intermediate_size=inner,
    )
