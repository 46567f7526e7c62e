"""What /admin/experts answers: how often each expert of each layer is chosen, where it lies, and what is on its way."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ..placement.heat import fair_shares
from ..placement.ledger import RAM
from ..placement.trace import Phase
from .routing_recorder import RoutingRecorder

if TYPE_CHECKING:  # it imports torch, which a daemon without accelerators does not
    from .accelerator_keeper import AcceleratorKeeper


class ExpertMap:
    """Of a recorder, None for a model without experts, and of a keeper, None for a daemon without accelerators."""

    def __init__(self, recorder: RoutingRecorder | None, keeper: "AcceleratorKeeper | None") -> None:
        self._recorder, self._keeper = recorder, keeper

    def show(self, phase: Phase) -> dict[str, Any]:
        """Lists by MoE layer. heat: how many times its fair share of the layer's choices each expert got lately; where:
        the place of its device in `devices`; coming: triples of layer, expert and device that are being brought."""
        stats = None if self._keeper is None else self._keeper.stats()
        devices = [RAM, *(device.device for device in stats.devices)] if stats else [RAM]
        shown: dict[str, Any] = {"phase": phase, "devices": devices}
        if self._recorder is None:
            return {
                **shown,
                "layers": [],
                "experts": 0,
                "top_k": 0,
                "tokens": 0.0,
                "heat": [],
                "where": [],
                "coming": [],
            }
        use, layers = self._recorder.recent(phase), self._recorder.layers
        where = np.zeros(use.counts.shape, np.int8)
        if self._keeper is not None:
            experts = self._keeper.placement().experts
            where = np.stack([experts[layer] for layer in layers]) + np.int8(1)  # the CPU is -1
        return {
            **shown,
            "layers": layers,
            "experts": use.counts.shape[1],
            "top_k": self._recorder.top_k,
            "tokens": round(use.tokens, 1),
            "heat": fair_shares(use.counts).round(2),
            "where": where,
            "coming": [(layer, expert, device + 1) for layer, expert, device in stats.coming] if stats else [],
        }
