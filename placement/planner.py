"""Planner: how a model's parts are best spread over a machine, as a problem for the solver, and by which policy."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .chain import solve_chain
from .cost import CostModel
from .menu import Task, disk_ms, experts_of
from .placed import Placement, Traffic
from .policies import (
    Parts,
    adaptive_parts,
    hit_tables,
    refined_parts,
    static_parts,
    tail_parts,
    whole_layer_parts,
)
from .solve import Infeasible, Solution
from .touch import hottest
from .trace import RoutingTrace
from .verdict import Verdict, judge_popularity

WHOLE, STATIC, TAIL, ADAPTIVE = "whole layers", "static pins", "pins and adaptive tail", "adaptive"
WORTH = 0.02  # of a step: what less of a policy must save to be taken instead of one that is simpler
SAME = 1e-3  # of a step: a difference that is none
ON_CPU = "all on the CPU"
GIB = 1 << 30
NONE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """Bytes for weights and keys and values: of each accelerator and of the host."""

    vram: tuple[int, ...]
    ram: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Considered:
    """A policy and the milliseconds of a decode step that it is predicted to take; None where it is not possible, or
    nothing is known of it; the note says which."""

    policy: str
    step_ms: float | None
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Where everything goes. prices_ms_per_gib: what the next GiB of each budget would save of a decode step, of the
    accelerators in turn and last of the host. reason: why this policy, with the numbers. slots: of each layer, how many
    of its experts on an accelerator make way for recently used ones: the coldest there. from_disk: of each layer, how
    many of its experts on the CPU, the coldest, are read from disk for lack of host memory; disk_ms: what that adds to
    a decode step."""

    placement: Placement
    policy: str
    solution: Solution
    prices_ms_per_gib: tuple[float, ...]
    considered: tuple[Considered, ...]
    reason: str
    slots: tuple[int, ...]
    from_disk: tuple[int, ...]
    disk_ms: float


@dataclass(frozen=True, slots=True)
class _Candidate:
    policy: str
    parts: Parts
    solution: Solution
    step_ms: float
    note: str


def plan_placement(
    cost: CostModel, traffic: Traffic, budgets: Budgets, kv_positions: int, verdict: Verdict | None = None
) -> Planned:
    """The fastest placement for decoding `traffic` with keys and values for so many positions.

    verdict: of the cost model's trace, judged here if not given. Unless it says that pinning helps, experts count as
    all alike. Raises Infeasible, of the budgets of the accelerators in turn and of the host, where the model does not
    fit; ValueError for budgets of other accelerators than the hardware profile has.
    """
    cards = len(cost.hardware.accelerators)
    if len(budgets.vram) != cards:
        raise ValueError(f"there are budgets for {len(budgets.vram)} accelerators, and the profile has {cards}")
    if verdict is None and cost.trace is not None:
        verdict = judge_popularity(cost.trace)
    helps = verdict is not None and verdict.pinning == "helps"
    used = cost if helps or cost.trace is None else CostModel(cost.shape, cost.hardware)
    task = Task(used, traffic, (*budgets.vram, budgets.ram), kv_positions)
    found = _candidates(task, cost.trace, verdict)
    # In the order of what they ask of the program: one that asks for more must be worth it.
    best, *others = [each for each in found if isinstance(each, _Candidate)]
    for other in others:
        if other.step_ms < best.step_ms * (1 - WORTH):
            best = other
    considered = tuple(Considered(policy=each.policy, step_ms=each.step_ms, note=each.note) for each in found)
    return _planned(task, best, considered, _reason(best, considered, cost.trace, verdict))


def _candidates(task: Task, trace: RoutingTrace | None, verdict: Verdict | None) -> list[_Candidate | Considered]:
    parts = static_parts(task)
    if not task.cards:
        return [_candidate(task, ON_CPU, parts, "there is no accelerator")]
    helps = verdict is not None and verdict.pinning == "helps"
    known = (
        "the hottest experts by the trace" if helps else "experts count as alike, so any of a layer would do as well"
    )
    first = solve_chain(task, parts)
    refined = refined_parts(task, parts, first.choices)
    static = _candidate(task, STATIC, refined, known, first)
    found = [_tried(task, WHOLE, lambda: whole_layer_parts(task, parts), "all of a layer or nothing"), static]
    if trace is None or verdict is None or verdict.pinning == "unknown":
        note = "how soon experts are used again is not known: there is no trace, or too little of one"
        return [*found, *(Considered(policy=policy, step_ms=None, note=note) for policy in (ADAPTIVE, TAIL))]
    note, hits = "hits by the trace's sample", hit_tables(task, trace)
    found.append(_tried(task, ADAPTIVE, lambda: adaptive_parts(task, parts, trace, hits), note))
    found.append(_candidate(task, TAIL, tail_parts(task, refined, trace, hits), note, static.solution))
    return found


def _tried(task: Task, policy: str, make: Callable[[], Parts], note: str) -> _Candidate | Considered:
    try:
        return _candidate(task, policy, make(), note)
    except Infeasible:
        return Considered(policy=policy, step_ms=None, note="does not fit")


def _candidate(task: Task, policy: str, parts: Parts, note: str, known: Solution | None = None) -> _Candidate:
    """known: of parts that began with the same options."""
    solution = solve_chain(task, parts, known)
    moved = sum(int(menu.moved[option]) for menu, option in zip(parts, solution.choices, strict=True))
    if not moved:
        return _Candidate(policy, parts, solution, solution.cost, note)
    slowest = min(card.to_gb_s.value for card in task.cost.hardware.accelerators)
    # Slots are filled while other layers are computed, but no faster than the link allows.
    step_ms = max(solution.cost, moved / slowest / 1e6)
    return _Candidate(policy, parts, solution, step_ms, f"{note}; {moved / 2**20:.1f} MiB a step go into slots")


def _planned(task: Task, best: _Candidate, considered: tuple[Considered, ...], reason: str) -> Planned:
    chosen = list(zip(best.parts, (int(choice) for choice in best.solution.choices), strict=True))
    layers = chosen[1:-1]
    from_disk = tuple(int(menu.disk[option]) for menu, option in layers)
    orders = [hottest(task.cost.share(number)) if count else NONE for number, count in enumerate(_experts(task))]
    placement = Placement(
        dense=tuple(int(menu.dense[option]) for menu, option in layers),
        experts=tuple(experts_of(menu, option, order) for (menu, option), order in zip(layers, orders, strict=True)),
        embed=int(chosen[0][0].dense[chosen[0][1]]),
        head=int(chosen[-1][0].dense[chosen[-1][1]]),
    )
    return Planned(
        placement=placement,
        policy=best.policy,
        solution=best.solution,
        prices_ms_per_gib=tuple(float(price) * GIB for price in best.solution.prices),
        considered=considered,
        reason=reason,
        slots=tuple(int(menu.slots[option]) for menu, option in layers),
        from_disk=from_disk,
        disk_ms=sum(float(disk_ms(task, number)[count]) for number, count in enumerate(from_disk) if count),
    )


def _experts(task: Task) -> list[int]:
    return [layer.num_experts for layer in task.cost.shape.layers]


def _reason(
    best: _Candidate, considered: tuple[Considered, ...], trace: RoutingTrace | None, verdict: Verdict | None
) -> str:
    parts = [f"{best.policy}: {best.step_ms:.2f} ms a step"]
    for other in considered:
        if other.policy == best.policy or other.step_ms is None:
            continue
        parts.append(_compared(other.step_ms - best.step_ms, other.policy, other.step_ms))
    text = ", ".join(parts) + "."
    if trace is None:
        return text + " There is no trace: experts count as alike, and no gain is claimed for pinning some of a layer."
    return f"{text} {verdict.text[:1].upper()}{verdict.text[1:]}" if verdict is not None else text


def _compared(saved: float, policy: str, step_ms: float) -> str:
    if abs(saved) < SAME * step_ms:
        return f"as fast as {policy}"
    which = f"{saved:.2f} ms less than" if saved > 0 else f"{-saved:.2f} ms more, but simpler, than"
    return f"{which} {policy} ({step_ms:.2f} ms)"
