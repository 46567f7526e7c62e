"""What `isotherm status` tells of accelerators: who has what, how it is used, and the foretold beside the measured."""

from dataclasses import asdict
from typing import Any

import numpy as np

from ..placement.cost import CostModel
from ..placement.placed import Placement
from ..placement.plan import Plan, Rate
from .accelerator_keeper import AcceleratorKeeper, device_json, ram_json


class AcceleratorStatus:
    """Of a keeper. cost: by which speed is foretold where experts lie otherwise than planned, if it is known."""

    def __init__(self, keeper: AcceleratorKeeper, plan: Plan, cost: CostModel | None) -> None:
        self._keeper, self._plan, self._cost = keeper, plan, cost
        self._foretold: tuple[bytes, dict[str, Any]] | None = None  # of the last placement

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
        """as_planned: the numbers are the plan's; else those of where experts lie now, or None."""
        key = b"".join(experts.tobytes() for experts in placement.experts)
        if self._foretold is None or self._foretold[0] != key:
            self._foretold = key, self._compute(placement)
        return self._foretold[1]

    def _compute(self, placement: Placement) -> dict[str, Any]:
        plan, traffic = self._plan, self._plan.traffic
        as_planned = all(map(np.array_equal, placement.experts, plan.placement.experts))
        decode: Rate | None = plan.predicted_decode_tok_s
        prefill: Rate | None = plan.predicted_prefill_tok_s
        if not as_planned:
            decode = Rate.of(self._cost.decode(placement, traffic)) if self._cost else None
            prefill = Rate.of(self._cost.prefill(placement, traffic)) if self._cost else None
        return {
            "as_planned": as_planned,
            "streams": traffic.streams,
            "context": traffic.context,
            "prompt": traffic.prompt,
            "decode_tok_s": None if decode is None else asdict(decode),
            "prefill_tok_s": None if prefill is None else asdict(prefill),
        }
