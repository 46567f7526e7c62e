"""What `isotherm status` tells of accelerators: who has what, how it is used, and the foretold beside the measured."""

import threading
from typing import Any

import numpy as np

from ..placement.cost import CostModel
from ..placement.placed import Placement
from ..placement.plan import Plan, Rate
from .accelerator_keeper import AcceleratorKeeper, device_json, ram_json
from .machine import lower_priority
from .speed import predicted_json


class AcceleratorStatus:
    """Of a keeper. cost: by which speed is foretold where experts lie otherwise than planned, if it is known."""

    def __init__(self, keeper: AcceleratorKeeper, plan: Plan, cost: CostModel | None) -> None:
        self._keeper, self._plan, self._cost = keeper, plan, cost
        self._foretold: tuple[Placement, Rate | None, Rate | None] = (
            plan.placement,
            plan.predicted_decode_tok_s,
            plan.predicted_prefill_tok_s,
        )
        self._foretelling: threading.Thread | None = None

    def show(self) -> dict[str, Any]:
        """Sizes in bytes, speeds in tokens a second."""
        stats = self._keeper.stats()
        return {
            "devices": [device_json(device) for device in stats.devices],
            "ram": ram_json(stats),
            "hit_rate": stats.hit_rate,
            "predicted": self._predicted(self._keeper.placement()),
            "measured": {"decode_tok_s": stats.decode_tok_s, "prefill_tok_s": stats.prefill_tok_s},
        }

    def _predicted(self, placement: Placement) -> dict[str, Any]:
        plan = self._plan
        of, decode, prefill = self._foretold
        as_planned = _same(placement, plan.placement)
        if as_planned:
            decode, prefill = plan.predicted_decode_tok_s, plan.predicted_prefill_tok_s
        elif not _same(placement, of):
            decode = prefill = None
            self._foretell(placement)
        return predicted_json(plan, decode, prefill, as_planned=as_planned)

    def _foretell(self, placement: Placement) -> None:
        """Beside: for a large model it takes seconds, in which whoever asks would hold up all answers."""
        busy = self._foretelling is not None and self._foretelling.is_alive()
        if self._cost is None or busy:
            return
        args = self._cost, placement
        self._foretelling = threading.Thread(target=self._compute, args=args, name="isotherm-foretell", daemon=True)
        self._foretelling.start()

    def _compute(self, cost: CostModel, placement: Placement) -> None:
        lower_priority()
        decode = Rate.of(cost.decode(placement, self._plan.traffic))
        self._foretold = placement, decode, Rate.of(cost.prefill(placement, self._plan.traffic))


def _same(one: Placement, other: Placement) -> bool:
    parts = [(where.dense, where.embed, where.head) for where in (one, other)]
    return parts[0] == parts[1] and all(map(np.array_equal, one.experts, other.experts))
