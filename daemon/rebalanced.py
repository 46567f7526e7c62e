"""Rebalanced: what a daemon with accelerators adds so that its experts follow the traffic, now and after a restart."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from ..experts.hybrid_executor import HybridExecutor
from ..placement.cost import CostModel
from ..placement.placed import Placement
from ..placement.plan import Plan
from ..placement.rebalance import MoveCosts
from ..placement.shape import CPU
from .attendants import Answers, Attendant
from .errors import InvalidRequestError
from .events import EventLog
from .history_keeper import HistoryKeeper
from .paths import placement_file
from .rebalance import Rebalance
from .rebalancing import Rebalancing
from .rebalancing_start import history_at_start, placement_at_start, rules_for, start_rebalancing
from .runner import DecoderRunner
from .step import StepPlan


class Unmoved:
    """Answers in place of what would move experts (see `attendants.Attendant`). reason: why there is none."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    @property
    def commands(self) -> Answers:
        return {Rebalance: self._refuse}

    def between_steps(self, plan: StepPlan | None) -> float | None:
        return None

    def _refuse(self, _: Rebalance) -> NoReturn:
        raise InvalidRequestError(self._reason)


class Rebalanced:
    """Of a plan, and of accelerators with these names. cost: None where nothing is known of this machine.

    placement: where experts lie at first: as the last daemon of the model left them, if the plan has room for that.

    Without `attendants` nothing is moved.
    """

    def __init__(self, plan: Plan, cost: CostModel | None, accelerators: Sequence[str], events: EventLog) -> None:
        self._plan, self._cost, self._names, self._events = plan, cost, tuple(accelerators), events
        self._keeper = HistoryKeeper(placement_file(plan.fingerprint), events)
        self._known = self._keeper.load(plan.fingerprint)
        self._rebalancing: Rebalancing | None = None
        self.placement = placement_at_start(plan.placement, self._names, self._known, events)

    def attendants(self, runner: DecoderRunner) -> list[Attendant]:
        """What moves experts of the runner, or says why nothing does."""
        cost = self._cost
        assert isinstance(runner.executor, HybridExecutor)
        if not _movable(self.placement):
            return [Unmoved("no layer has experts both on an accelerator and in RAM, so none can change places")]
        if cost is None:
            detail = "what moves would pay is not known on this machine; measure it by: isotherm calibrate"
            self._events.record("not_rebalanced", detail)
            return [Unmoved(detail)]
        rates = _rates(cost) if cost.trace is not None else None
        start = history_at_start(self.placement, self._names, self._plan.fingerprint, self._known, rates)
        costs = MoveCosts.of(cost, self.placement, self._plan.traffic)
        self._rebalancing = start_rebalancing(
            runner,
            runner.executor.residency,
            self.placement,
            costs,
            rules_for(costs),
            self._keeper,
            start,
            self._events,
        )
        return [self._rebalancing]

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """While the engine runs: what comes of it is written down."""
        with self._keeper.keeping():
            try:
                yield
            finally:
                if self._rebalancing:
                    self._rebalancing.close()


def _movable(placement: Placement) -> bool:
    """Whether a layer has experts on an accelerator and others on the CPU."""
    return any(np.any(own == CPU) and np.any(own != CPU) for own in placement.experts)


def _rates(cost: CostModel) -> NDArray[np.float64]:
    return np.stack([cost.share(layer) for layer in cost.shape.moe_layers])
