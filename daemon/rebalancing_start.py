"""How rebalancing begins: from where experts came to lie before, if that fits what is served now."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..placement.placed import Placement
from ..placement.rebalance import MoveCosts, Rebalancer, Rules
from .choices import Choosing
from .events import EventLog
from .history_keeper import HistoryKeeper
from .placement_history import PlacementHistory, moe_layers, table
from .rebalancing import Rebalancing, Resident

STEP_MS = 5.0  # for which the copies of a round may hold a step up; an expert that takes longer is moved alone


def rules_for(costs: MoveCosts) -> Rules:
    """As many bytes and as much time a step as the slowest link allows within STEP_MS."""
    largest = int(costs.nbytes.max())
    slowest = float((costs.transfer_ms / costs.nbytes[:, None]).max())
    step_bytes = max(largest, int(STEP_MS / slowest)) if slowest else max(largest, 1)
    return Rules(step_bytes=step_bytes, step_ms=max(STEP_MS, float(costs.transfer_ms.max())))


def placement_at_start(
    planned: Placement, accelerators: Sequence[str], history: PlacementHistory | None, events: EventLog
) -> Placement:
    """Where experts came to lie before, if the plan has the same slots; else as planned."""
    if history is None:
        return planned
    if not history.fits(planned, accelerators):
        detail = "the plan has other slots than the placement that traffic led to; only what it chose is remembered"
        events.record("placement_planned_anew", detail, logging.INFO)
        return planned
    return history.placement(planned)


def history_at_start(
    placement: Placement,
    accelerators: Sequence[str],
    fingerprint: str,
    known: PlacementHistory | None,
    rates: NDArray[np.float64] | None = None,
) -> PlacementHistory:
    """Of experts that lie as `placement_at_start` said. known: what was kept of the model before; rates: float64 [MoE
    layers, experts], how often a token chose each by a trace, for where nothing is known."""
    where = table(placement)
    start = PlacementHistory(
        fingerprint=fingerprint,
        accelerators=tuple(accelerators),
        layers=moe_layers(placement),
        where=where,
        rates=np.zeros(where.shape) if rates is None else rates,
    )
    if known is None or known.where.shape != where.shape:
        return start
    if known.fits(placement, accelerators) and np.array_equal(known.where, where):
        return known
    return replace(start, rates=known.rates, made=known.made)


def start_rebalancing(
    runner: Choosing,
    residency: Resident,
    placement: Placement,
    costs: MoveCosts,
    rules: Rules,
    keeper: HistoryKeeper,
    start: PlacementHistory,
    events: EventLog,
) -> Rebalancing:
    """placement: where the experts lie now, as `start` says."""
    rebalancer = Rebalancer(
        placement, costs, rules, rates=start.rates, rest=start.rest, earlier=start.earlier(placement)
    )
    return Rebalancing(runner, residency, rebalancer, keeper, start, events)
