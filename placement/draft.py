"""From a model, a machine, a routing trace and a wish to a plan: a pure function of numbers."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from .cost import CostModel
from .explain import Facts, cpu_bytes, read_rate, reasons, touched_on_cpu, value_by_gib
from .hardware import Estimate, HardwareProfile
from .ledger import Load, Overheads, activation_bytes, device_name, draw_up, kv_staging_bytes
from .placed import Prediction, Traffic
from .plan import LayerPlan, Plan, Rate, digest
from .planner import Budgets, Planned, plan_placement
from .room import Alternative, CardTooSmallError, FitError, Room, check_fit
from .shape import ModelShape
from .solve import Infeasible
from .trace import RoutingTrace

GIB = 2**30
_STAGING_SHARE = 8  # of a card, which layers may be streamed into: more of it would take more than it gives
Planner = Callable[[CostModel, Traffic, Budgets, int], Planned]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is asked for. context: tokens that a stream may have; positions: of the whole KV cache.

    ram, vram: bytes that may be used of the host and of each accelerator, 0 for one that is left out. runtime: bytes of
    RAM for Python and all that is no weight. rows: of logits in a step, at most. disk: whether experts may stay there.
    kv_offload: bytes of RAM for keys and values of all layers, where accelerators have room for fewer; 0 for none.
    """

    traffic: Traffic
    context: int
    positions: int
    ram: int
    vram: tuple[int, ...] = ()
    runtime: int = GIB // 2
    rows: int = 64
    disk: bool = False
    kv_offload: int = 0


def draft(
    cost: CostModel,
    wish: Wish,
    *,
    trace_name: str = "",
    alternatives: Callable[[], Sequence[Alternative]] = tuple,
    planner: Planner | None = None,
) -> Plan:
    """The plan for a model on a machine. trace_name: what the trace is, in words.

    alternatives: other forms of the model, asked for where this one does not fit. Raises FitError.
    """
    planner = planner or plan_placement
    overheads = overheads_of(cost, wish, staged=False)
    _check_room(cost.shape, wish, overheads, alternatives)
    if _streams_layers(cost, wish, overheads):
        staged = overheads_of(cost, wish, staged=True)
        with suppress(FitError):  # then prompts have to do without
            _check_room(cost.shape, wish, staged, tuple)
            return _written(cost, wish, _placed(cost, wish, staged, planner), staged, trace_name)
    return _written(cost, wish, _placed(cost, wish, overheads, planner), overheads, trace_name)


def model_of(shape: ModelShape, hardware: HardwareProfile, trace: RoutingTrace | None, *, disk: bool) -> CostModel:
    """The cost model of a draft; without `disk` no expert may stay there."""
    return CostModel(shape, hardware if disk else replace(hardware, ssd_read_gb_s=Estimate(0.0)), trace)


def overheads_of(cost: CostModel, wish: Wish, *, staged: bool) -> Overheads:
    """What is needed beside weights and KV cache. staged: whether layers are streamed to accelerators."""
    shape, used = cost.shape, [size for size in wish.vram if size]
    largest = max((layer.num_experts * layer.expert_bytes for layer in shape.layers), default=0)
    expert = max((layer.expert_bytes for layer in shape.layers), default=0)
    handed = 4 * wish.traffic.chunk * shape.hidden_size * 4  # there and back, two steps of an overlap
    kv_staging = kv_staging_bytes(shape.kv_bytes * shape.kv_block) if wish.kv_offload else 0
    return Overheads(
        runtime=wish.runtime,
        activations=activation_bytes(shape, wish.traffic.chunk, wish.rows),
        staging=tuple(min(largest, size // _STAGING_SHARE) if staged else 0 for size in wish.vram),
        pinned=len(used) * (handed + (2 * expert if staged else 0) + kv_staging),
        kv_offload=wish.kv_offload,
        kv_staging=kv_staging,
    )


def _room(wish: Wish, overheads: Overheads) -> Room:
    vram = tuple(size - overheads.of_vram(device) if size else 0 for device, size in enumerate(wish.vram))
    return Room(ram=wish.ram - overheads.of_ram, vram=vram)


def _check_room(
    shape: ModelShape, wish: Wish, overheads: Overheads, alternatives: Callable[[], Sequence[Alternative]]
) -> None:
    room = _room(wish, overheads)
    for device, left in enumerate(room.vram):
        if left < 0:
            raise _too_small(device, wish.vram[device], overheads)
    if wish.disk:
        return
    try:
        check_fit(shape, room, wish.traffic.streams, wish.context)
    except FitError:
        check_fit(shape, room, wish.traffic.streams, wish.context, alternatives())
        raise


def _too_small(device: int, size: int, overheads: Overheads) -> CardTooSmallError:
    name = device_name(device)
    parts = ", ".join(f"{term.nbytes / GIB:.2f} {term.name}" for term in overheads.vram_terms(device) if term.nbytes)
    least = math.ceil(100 * overheads.of_vram(device) / GIB) / 100  # so that it would do
    return CardTooSmallError(
        device,
        f"{size / GIB:.2f} GiB of {name} is less than what it needs before any weight lies there, {least:.2f} GiB "
        f"({parts})",
        f"give it more by --vram {name}=SIZE, or leave it out by --vram {name}=0GiB",
    )


def _placed(cost: CostModel, wish: Wish, overheads: Overheads, planner: Planner) -> Planned:
    budgets = _budgets(cost.shape, _room(wish, overheads))
    try:
        return planner(cost, wish.traffic, budgets, wish.positions)
    except Infeasible as error:
        names = [f"on {device_name(device)}" for device in range(len(wish.vram))] + ["of RAM"]
        missing = " and ".join(
            f"{size / GIB:.2f} GiB more {name}" for name, size in zip(names, error.overrun, strict=True) if size
        )
        raise FitError(
            f"{cost.shape.name} with a KV cache of {wish.positions} positions does not fit: {missing} would be needed; "
            "a shorter context, a smaller KV cache, fewer streams or weights of fewer bits would need less"
        ) from error


def _budgets(shape: ModelShape, room: Room) -> Budgets:
    """The planner weighs embedding and head, but not the final norm, and each for itself even if they are one."""
    norm = shape.vector_bytes  # it goes with the head, wherever that is
    shared = shape.head.nbytes if shape.tied and not any(room.vram) else 0
    vram = tuple(max(size - norm, 0) for size in room.vram)
    return Budgets(vram=vram, ram=max(room.ram - norm + shared, 0))


def _streams_layers(cost: CostModel, wish: Wish, overheads: Overheads) -> bool:
    """Whether prompts are long enough for some layer's experts to be computed on an accelerator that has no room for
    all of them."""
    shape = cost.shape
    if sum(_room(wish, overheads).vram) >= shape.nbytes + wish.positions * shape.kv_bytes:
        return False
    layers = {shape.layers[layer]: layer for layer in shape.moe_layers}  # one of each form
    return any(
        cost.break_even(layer, device) <= wish.traffic.chunk
        for device, size in enumerate(wish.vram)
        if size
        for layer in layers.values()
    )


def _written(cost: CostModel, wish: Wish, planned: Planned, overheads: Overheads, trace_name: str) -> Plan:
    shape, hardware, placement = cost.shape, cost.hardware, planned.placement
    decode = _as_planned(cost.decode(placement, wish.traffic), planned)
    ledger = draw_up(
        Load(shape=shape, placement=placement, positions=wish.positions, from_disk=planned.from_disk),
        overheads,
        wish.ram,
        wish.vram,
    )
    prices = {device_name(device): planned.prices_ms_per_gib[device] for device in range(len(wish.vram))}
    facts = Facts(
        cost=cost,
        placement=placement,
        traffic=wish.traffic,
        decode=decode,
        reason=planned.reason,
        ledger=ledger,
        prices=prices,
        positions=wish.positions,
        neutral=cost.trace is None,
        from_disk=planned.from_disk,
    )
    size = cpu_bytes(facts)
    return Plan(
        model=shape.name,
        fingerprint=shape.fingerprint if shape.whole else "",
        inputs={"shape": digest(shape.sizes), "hardware": digest(hardware), "trace": digest(cost.trace)},
        hardware=hardware.name,
        trace=trace_name,
        kv_kind=shape.kv_kind,
        context=wish.context,
        traffic=wish.traffic,
        policy=planned.policy,
        reasons=reasons(facts),
        layers=_layers(planned),
        embed=placement.embed,
        head=placement.head,
        ledger=ledger,
        predicted_decode_tok_s=Rate.of(decode),
        predicted_prefill_tok_s=Rate.of(_prefill(cost, wish, planned, overheads)),
        step_ms=decode.step_ms,
        parts_ms=decode.parts_ms,
        cpu_gb=size / 1e9,
        bound_tok_s=wish.traffic.streams * read_rate(hardware.cpu) * 1e9 / size if size else 0.0,
        shadow_price_ms_per_gib=prices,
        value_ms_by_gib=value_by_gib(facts),
        considered=planned.considered,
    )


def _as_planned(decode: Prediction, planned: Planned) -> Prediction:
    """The prediction with what the cost model does not know: experts that come and go, and those on disk."""
    adaptive = next((item.step_ms for item in planned.considered if item.policy == planned.policy), None)
    if any(planned.slots) and adaptive:
        factor = adaptive / decode.step_ms
        decode = _scaled(decode, factor, {name: ms * factor for name, ms in decode.parts_ms.items()})
    elif planned.disk_ms:
        parts = {**decode.parts_ms, "experts from disk": planned.disk_ms}
        decode = _scaled(decode, 1 + planned.disk_ms / decode.step_ms, parts)
    return decode


def _prefill(cost: CostModel, wish: Wish, planned: Planned, overheads: Overheads) -> Prediction:
    """The prediction with what each chunk of the prompt reads from disk."""
    traffic, shape = wish.traffic, cost.shape
    plain = cost.prefill(planned.placement, traffic, staging=any(overheads.staging))
    size = sum(
        float(touched_on_cpu(cost, planned.placement, layer, min(traffic.chunk, traffic.prompt))[:count].sum())
        * shape.layers[layer].expert_bytes
        for layer, count in enumerate(planned.from_disk)
        if count
    )
    if not size:
        return plain
    chunks = -(-traffic.prompt // traffic.chunk)
    disk_ms = chunks * size / cost.hardware.ssd_read_gb_s.value / 1e6
    return _scaled(plain, 1 + disk_ms / plain.step_ms, {**plain.parts_ms, "experts from disk": disk_ms})


def _scaled(decode: Prediction, factor: float, parts: dict[str, float]) -> Prediction:
    value, low, high = (rate / factor for rate in (decode.value, decode.low, decode.high))
    return Prediction(value=value, low=low, high=high, step_ms=decode.step_ms * factor, parts_ms=parts)


def _layers(planned: Planned) -> tuple[LayerPlan, ...]:
    placement = planned.placement
    rows = zip(placement.dense, placement.experts, planned.slots, planned.from_disk, strict=True)
    return tuple(
        LayerPlan(dense, tuple(int(device) for device in experts), slots, from_disk)
        for dense, experts, slots, from_disk in rows
    )
