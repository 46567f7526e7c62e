"""What is placed where, on models whose best placement can be told by looking, and what is said of it."""

import numpy as np
import pytest
from isotherm.placement.cost import CostModel
from isotherm.placement.hardware import Estimate, HardwareProfile
from isotherm.placement.placed import Placement, Traffic
from isotherm.placement.planner import ADAPTIVE, ON_CPU, STATIC, TAIL, WHOLE, Budgets, Planned, plan_placement
from isotherm.placement.shape import CPU, ModelShape
from isotherm.placement.solve import Infeasible
from isotherm.placement.trace import RoutingTrace
from isotherm.placement.verdict import Verdict
from support.cost_cases import accelerator, machine, model, trace_of

EXPERT, DENSE, END = 30 << 10, 200 << 10, 1000 << 10  # bytes, of a layer's parts and of the embedding and the head
PLENTY = 1 << 40
HELPS = Verdict(pinning="helps", text="pinning will help")


def used(placement: Placement, shape: ModelShape, device: int, positions: int) -> int:
    """Bytes on a device, counted from the placement."""
    total = shape.embed.nbytes * (placement.embed == device) + shape.head.nbytes * (placement.head == device)
    for number, layer in enumerate(shape.layers):
        if placement.dense[number] == device:
            total += layer.dense_bytes + positions * layer.kv_bytes
        total += layer.expert_bytes * int((placement.experts[number] == device).sum())
    return total


def skewed(tokens: int = 400, layers: int = 3, experts: int = 8, power: float = 1.5) -> RoutingTrace:
    rng = np.random.default_rng(3)
    likely = np.log(np.arange(1.0, experts + 1) ** -power)
    keys = rng.gumbel(size=(tokens, layers, experts)) + likely
    return trace_of(np.argsort(-keys, axis=2)[..., :2].tolist(), experts, list(range(0, tokens, tokens // 10)))


def sticky(tokens: int = 600, experts: int = 16) -> RoutingTrace:
    """Each token mostly repeats the one before, and in the long run all experts are alike."""
    rng = np.random.default_rng(5)
    chosen = [rng.permutation(experts)[:2]]
    for _ in range(tokens - 1):
        chosen.append(rng.permutation(experts)[:2] if rng.random() < 0.05 else chosen[-1])
    return trace_of([[one.tolist()] for one in chosen], experts, list(range(0, tokens, tokens // 20)))


def step_of(planned: Planned, policy: str) -> float | None:
    return next(each.step_ms for each in planned.considered if each.policy == policy)


@pytest.mark.parametrize("vram", [(0, 0), (900 << 10, 300 << 10), (1500 << 10, 2500 << 10), (1 << 30, 1 << 30)])
@pytest.mark.parametrize("trace", [None, skewed()], ids=["no trace", "skewed"])
def test_keeps_its_budgets_and_knows_its_time(vram: tuple[int, int], trace: RoutingTrace | None) -> None:
    shape = model(layers=3)
    cost = CostModel(shape, machine(accelerator(), accelerator(read_gb_s=40, tflops=0.4)), trace)
    traffic = Traffic(streams=2, context=64)
    planned = plan_placement(cost, traffic, Budgets(vram=vram, ram=PLENTY), 128, HELPS if trace else None)
    assert planned.policy in (WHOLE, STATIC)
    for card, budget in enumerate(vram):
        assert used(planned.placement, shape, card, 128) <= budget
    assert planned.solution.cost == pytest.approx(cost.decode(planned.placement, traffic).step_ms)
    assert len(planned.prices_ms_per_gib) == 3
    assert planned.solution.bound <= planned.solution.cost


def test_everything_goes_to_a_card_that_has_room() -> None:
    shape = model(layers=3)
    planned = plan_placement(
        CostModel(shape, machine(accelerator())), Traffic(), Budgets(vram=(1 << 30,), ram=PLENTY), 512
    )
    assert planned.placement.dense == (0, 0, 0)
    assert planned.placement.head == 0
    assert all((experts == 0).all() for experts in planned.placement.experts)
    assert planned.policy == WHOLE
    assert planned.prices_ms_per_gib == (0.0, 0.0)


def test_without_a_card_all_is_on_the_cpu() -> None:
    shape = model(layers=2)
    planned = plan_placement(CostModel(shape, machine()), Traffic(), Budgets(vram=(), ram=PLENTY), 512)
    assert planned.policy == ON_CPU
    assert planned.placement.dense == (CPU, CPU)
    assert planned.solution.gap == 0


def test_beats_pinning_by_frequency_where_calls_cost_most() -> None:
    """Room for one layer's experts, nearly alike: the hottest of both leave the CPU a call in each."""
    shape = model(layers=2)
    rows = [[[a, b], [a, b]] for a in range(8) for b in range(8) if a != b for _ in range(6)]
    rows += [[[0, 1], [2, 3]], [[2, 3], [0, 1]]] * 20
    rows = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]  # so that nothing is used again soon
    trace = trace_of(rows, 8, list(range(0, len(rows), 40)))
    cost = CostModel(shape, machine(accelerator(hop_us=0), call_us=400), trace)
    vram = 2 * DENSE + 8 * EXPERT
    planned = plan_placement(cost, Traffic(context=0), Budgets(vram=(vram,), ram=PLENTY), 0, HELPS)
    assert planned.policy == STATIC
    counts = np.array([cost.share(layer) for layer in range(2)])
    pinned = np.full(16, CPU, np.int8)
    pinned[np.argsort(-counts.ravel(), kind="stable")[:8]] = 0
    by_frequency = Placement(dense=(0, 0), experts=tuple(pinned.reshape(2, 8)), embed=CPU, head=CPU)
    ours = cost.decode(planned.placement, Traffic(context=0)).step_ms
    assert used(planned.placement, shape, 0, 0) <= vram
    assert 0 < (by_frequency.experts[0] == 0).sum() < 8
    assert ours < cost.decode(by_frequency, Traffic(context=0)).step_ms - 0.1  # a quarter of a call


def test_the_hottest_experts_are_pinned() -> None:
    cost = CostModel(model(), machine(accelerator(), call_us=0), skewed(layers=1))
    planned = plan_placement(cost, Traffic(), Budgets(vram=(3 * EXPERT,), ram=PLENTY), 0, HELPS)
    resident = planned.placement.experts[0] == 0
    assert resident.sum() == 3
    assert set(np.flatnonzero(resident)) == set(np.argsort(-cost.share(0))[:3])


def test_claims_nothing_of_pinning_without_a_trace() -> None:
    cost = CostModel(model(), machine(accelerator()))
    planned = plan_placement(cost, Traffic(), Budgets(vram=(500 << 10,), ram=PLENTY), 0)
    assert "no gain is claimed" in planned.reason
    assert step_of(planned, ADAPTIVE) is None
    assert step_of(planned, TAIL) is None


def test_experts_count_as_alike_where_pinning_does_not_help() -> None:
    shape, trace = model(), skewed(layers=1)
    verdict = Verdict(pinning="does not help", text="pinning will not help this model")
    budgets = Budgets(vram=(500 << 10,), ram=PLENTY)
    planned = plan_placement(CostModel(shape, machine(accelerator()), trace), Traffic(), budgets, 0, verdict)
    without = plan_placement(CostModel(shape, machine(accelerator())), Traffic(), budgets, 0)
    assert ". Pinning will not help this model" in planned.reason
    assert step_of(planned, STATIC) == step_of(without, STATIC)


def test_judges_the_trace_itself() -> None:
    cost = CostModel(model(num_experts=16), machine(accelerator()), sticky())
    planned = plan_placement(cost, Traffic(), Budgets(vram=(900 << 10,), ram=PLENTY), 0)
    assert "Pinning will not help" in planned.reason


def test_slots_are_chosen_where_experts_are_used_again_soon() -> None:
    hardware = machine(accelerator(to_gb_s=10), read_gb_s=1)
    cost = CostModel(model(num_experts=16), hardware, sticky())
    planned = plan_placement(cost, Traffic(context=0), Budgets(vram=(DENSE + 6 * EXPERT,), ram=PLENTY), 0)
    assert planned.policy == ADAPTIVE
    assert planned.slots == (int((planned.placement.experts[0] == 0).sum()),)
    adaptive, static = step_of(planned, ADAPTIVE), step_of(planned, STATIC)
    assert adaptive is not None
    assert static is not None
    assert adaptive < static - 0.04
    assert "slots" in next(each.note for each in planned.considered if each.policy == ADAPTIVE)


def test_a_slow_link_sets_the_pace_of_slots() -> None:
    slow = machine(accelerator(to_gb_s=0.001), read_gb_s=1)
    planned = plan_placement(
        CostModel(model(num_experts=16), slow, sticky()), Traffic(), Budgets(vram=(DENSE + 6 * EXPERT,), ram=PLENTY), 0
    )
    assert planned.policy in (WHOLE, STATIC)
    assert sum(planned.slots) == 0


def with_disk(hardware: HardwareProfile, gb_s: float) -> HardwareProfile:
    return HardwareProfile(
        name=hardware.name,
        nominal=True,
        source="made up",
        cpu=hardware.cpu,
        accelerators=hardware.accelerators,
        ssd_read_gb_s=Estimate(gb_s),
    )


def test_what_host_memory_cannot_hold_is_read_from_disk() -> None:
    shape = model(layers=2)
    short = shape.nbytes - 5 * EXPERT
    planned = plan_placement(CostModel(shape, with_disk(machine(), 0.5)), Traffic(), Budgets(vram=(), ram=short), 0)
    assert sum(planned.from_disk) == 5
    # Each is touched by one token in four, and 30 KiB take 61 us.
    assert planned.disk_ms == pytest.approx(5 * 0.25 * EXPERT / 0.5e6)
    decode = CostModel(shape, machine()).decode(planned.placement, Traffic()).step_ms
    assert planned.solution.cost == pytest.approx(decode + planned.disk_ms)


def test_says_what_is_missing_without_a_disk() -> None:
    shape = model(layers=2)
    with pytest.raises(Infeasible) as error:
        plan_placement(CostModel(shape, machine()), Traffic(), Budgets(vram=(), ram=shape.nbytes - 5), 100)
    assert error.value.overrun == (100 * shape.kv_bytes + 5,)


def test_a_card_takes_what_host_memory_cannot_hold() -> None:
    shape = model(layers=2)
    budgets = Budgets(vram=(END + DENSE,), ram=shape.nbytes - END)
    planned = plan_placement(CostModel(shape, machine(accelerator())), Traffic(), budgets, 0)
    assert used(planned.placement, shape, CPU, 0) <= budgets.ram


def test_refuses_budgets_for_other_cards() -> None:
    with pytest.raises(ValueError, match="2 accelerators, and the profile has 1"):
        plan_placement(CostModel(model(), machine(accelerator())), Traffic(), Budgets(vram=(1, 1), ram=PLENTY), 0)
