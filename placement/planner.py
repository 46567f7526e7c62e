"""Planner: how a model's parts are best spread over a machine, as a problem for the solver, and by which policy."""

from dataclasses import dataclass

from .cost import CostModel
from .placed import Placement, Traffic
from .solve import Solution


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """Bytes for weights and keys and values: of each accelerator and of the host."""

    vram: tuple[int, ...]
    ram: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Considered:
    """A policy and the milliseconds of a decode step that it is predicted to take; None where that is not known."""

    policy: str
    step_ms: float | None
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Where everything goes. prices_ms_per_gib: what the next GiB of each budget would save of a decode step, of the
    accelerators in turn and last of the host. reason: why this policy, with the numbers. slots: of each layer, how many
    of its experts on an accelerator make way for recently used ones. from_disk: of each layer, how many of its experts
    on the CPU, the coldest, are read from disk for lack of host memory; disk_ms: what that adds to a decode step."""

    placement: Placement
    policy: str
    solution: Solution
    prices_ms_per_gib: tuple[float, ...]
    considered: tuple[Considered, ...]
    reason: str
    slots: tuple[int, ...]
    from_disk: tuple[int, ...]
    disk_ms: float


def plan_placement(cost: CostModel, traffic: Traffic, budgets: Budgets, kv_positions: int) -> Planned:
    """The fastest placement for decoding `traffic` with keys and values for so many positions.

    Raises Infeasible, of the budgets of the accelerators in turn and of the host, where the model does not fit.
    """
    raise NotImplementedError
