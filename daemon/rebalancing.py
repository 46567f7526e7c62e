"""Rebalancing: experts follow the traffic while their model is served, between steps, in the engine's thread.

A round of swaps is first written down and then begun, so that a process which ends at any moment is found where it was.
Its copies run beside the next steps; the CPU computes what is on its way. The next round waits for them.
"""

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..gpu_kernels.device import DeviceError
from ..placement.rebalance import Rebalancer, Swap
from .attendants import Answers
from .choices import Choosing, Ids, StepRows
from .errors import EngineError, InvalidRequestError, OverloadedError
from .events import EventLog
from .history_keeper import HistoryKeeper
from .placement_history import Move, PlacementHistory, Round, moe_layers, table, with_experts
from .rebalance import Rebalance
from .step import StepPlan

logger = logging.getLogger(__name__)

DECIDE_EVERY = 64  # decoded tokens after which it is looked whether swaps pay
KEEP_EVERY = 1024  # decoded tokens after which the rates are written down, if no round was
_SOON_S = 0.01  # until an idle engine looks again whether a round is written down
_RETRY_S = 1.0


class Resident(Protocol):
    """Where experts lie, see `experts.residency.Residency`."""

    where: tuple[NDArray[np.int8], ...]

    def settle(self, *, wait: bool = False) -> int: ...

    def swap(self, swaps: Sequence[Swap]) -> None: ...


@dataclass(frozen=True, slots=True)
class _Announced:
    """A round that waits until it is written down. number: the keeper's."""

    number: int
    swaps: tuple[Swap, ...]


class Rebalancing:
    """Of a runner (see `attendants.Attendant`). rebalancer: begins where the experts lie now; start: what is known of
    the model, its last round being that before the rebalancer's placement.

    Swaps follow what was decoded: prompts read most experts in any case.
    """

    def __init__(
        self,
        runner: Choosing,
        residency: Resident,
        rebalancer: Rebalancer,
        keeper: HistoryKeeper,
        start: PlacementHistory,
        events: EventLog,
    ) -> None:
        self._runner, self._residency, self._rebalancer = runner, residency, rebalancer
        self._keeper, self._start, self._events = keeper, start, events
        self._automatic = True  # rounds are begun without being asked for
        self._rounds, self._made = deque(start.rounds), start.made
        self._announced: _Announced | None = None
        self._staged: list[Ids] = []
        self._staged_tokens = self._unkept_tokens = 0
        self._due = False  # another round may follow at once

    @property
    def commands(self) -> Answers:
        return {Rebalance: self._obey}

    def between_steps(self, plan: StepPlan | None) -> float | None:
        if plan is not None:
            self._stage(plan)
        try:
            return self._go_on(idle=plan is None)
        except DeviceError as error:  # the next step does without that device
            self._announced = None
            self._events.record("rebalancing_interrupted", str(error))
            return None

    def close(self) -> None:
        """Write down what was seen since the last time; for after the engine's end."""
        self._observe()
        if self._unkept_tokens:
            self._keep()

    def _stage(self, plan: StepPlan) -> None:
        """A step ends with cold caches, so what it chose is only copied, and counted later together with others."""
        rows = StepRows.of(plan.chunks)
        if len(rows.decode):
            choices = self._runner.choices()
            assert choices is not None, "the model has experts"
            self._staged.append(choices.decode(rows)[0])
            self._staged_tokens += len(rows.decode)

    def _go_on(self, *, idle: bool) -> float | None:
        if self._residency.settle(wait=idle):
            return None
        if self._announced:
            if not self._keeper.is_kept(self._announced.number):
                return _SOON_S if idle else None
            self._begin()
            return _SOON_S if idle else None
        if self._due or self._staged_tokens >= DECIDE_EVERY:
            self._decide()
        return _SOON_S if idle and self._announced else None

    def _begin(self) -> None:
        assert self._announced is not None
        swaps, self._announced = self._announced.swaps, None
        try:
            self._residency.swap(swaps)
        except ValueError as error:  # residents were moved or given up meanwhile
            self._events.record("swaps_outdated", f"{error}; they are decided anew", logging.INFO)
        else:
            logger.info("%d experts change places, the first since in %s", len(swaps), swaps[0].reason)
        self._due = self._automatic

    def _decide(self) -> None:
        self._due = False
        self._observe()
        self._follow()
        swaps = self._rebalancer.propose() if self._automatic else ()
        if swaps:
            self._announce(swaps)
        elif self._unkept_tokens >= KEEP_EVERY:
            self._keep()

    def _observe(self) -> None:
        if not self._staged:
            return
        ids, self._staged = np.concatenate(self._staged, axis=1), []
        tokens, self._staged_tokens = self._staged_tokens, 0
        layers, experts = self._rebalancer.rates.shape
        flat = ids.reshape(layers, -1) + np.arange(layers)[:, None] * experts
        counts = np.bincount(flat.reshape(-1), minlength=layers * experts).reshape(layers, experts)
        self._rebalancer.observe(counts, tokens)
        self._unkept_tokens += tokens

    def _follow(self) -> None:
        """Residents may have been moved or given up by others; rounds from before that cannot be taken back."""
        base = self._rebalancer.placement
        if all(map(np.array_equal, self._residency.where, base.experts)):
            return
        layers = moe_layers(base)
        where = np.stack([self._residency.where[layer] for layer in layers])
        self._rebalancer.move(with_experts(base, layers, where))
        self._rounds.clear()

    def _announce(self, swaps: tuple[Swap, ...]) -> None:
        self._rebalancer.apply(swaps)
        self._rounds.append(Round(time.time(), tuple(map(_move_of, swaps))))
        while len(self._rounds) > self._rebalancer.steps_back:
            self._rounds.popleft()
        self._made += 1
        self._announced = _Announced(self._keep(), swaps)

    def _announce_back(self, swaps: tuple[Swap, ...]) -> None:
        self._rebalancer.rollback()
        self._rounds.pop()
        self._announced = _Announced(self._keep(), swaps)

    def _back(self) -> tuple[Swap, ...]:
        if not self._rounds:
            raise InvalidRequestError("there is no round of swaps that could be taken back", "rollback")
        moves = [move.back() for move in self._rounds[-1].moves]
        return tuple(self._rebalancer.priced(m.layer, m.device, m.promoted, m.demoted) for m in moves)

    def _keep(self) -> int:
        self._unkept_tokens = 0
        return self._keeper.keep(
            replace(
                self._start,
                where=table(self._rebalancer.placement),
                rates=self._rebalancer.rates,
                rest=self._rebalancer.rest,
                rounds=tuple(self._rounds),
                made=self._made,
            )
        )

    def _obey(self, command: Rebalance) -> dict[str, Any]:
        if command.automatic is not None:
            self._automatic = command.automatic
        self._observe()
        busy = self._busy()
        swaps: tuple[Swap, ...] = ()
        if not busy:
            self._follow()
            swaps = self._back() if command.back else self._rebalancer.propose()
        elif not command.dry_run:
            raise OverloadedError("swaps are under way; ask again in a moment", _RETRY_S)
        if swaps and not command.dry_run:
            (self._announce_back if command.back else self._announce)(swaps)
        return self._report(command, swaps, busy)

    def _busy(self) -> bool:
        try:
            return self._residency.settle() > 0 or self._announced is not None
        except DeviceError as error:
            raise EngineError(f"an accelerator fails, which the next step will do without: {error}") from error

    def _report(self, command: Rebalance, swaps: Sequence[Swap], busy: bool) -> dict[str, Any]:
        """Sizes in bytes, times in milliseconds."""
        return {
            "automatic": self._automatic,
            "dry_run": command.dry_run,
            "under_way": busy or self._announced is not None,
            "swaps": [asdict(swap) | {"reason": swap.reason} for swap in swaps],
            "nbytes": sum(swap.nbytes for swap in swaps),
            "transfer_ms": sum(swap.transfer_ms for swap in swaps),
            "saving_ms": sum(swap.saving_ms for swap in swaps),
            "rest_tokens": self._rebalancer.rest,
            "rounds_made": self._made,
            "rounds_back": len(self._rounds),
        }


def _move_of(swap: Swap) -> Move:
    return Move(swap.layer, swap.device, swap.promoted, swap.demoted)
