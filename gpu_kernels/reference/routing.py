"""Which experts a token goes to."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..kernels import Routing
from .fused import LANES, add_lanes, exp


def route(logits: Tensor, routing: Routing, ids: Tensor, weights: Tensor, count: Tensor) -> None:
    """See `Kernels.route`."""
    tokens = int(count)
    lowest = logits.new_tensor(-torch.inf)
    known = torch.where(logits[:tokens].isnan(), lowest, logits[:tokens])
    best, order = torch.sort(known, dim=1, descending=True, stable=True)
    best, order = best[:, : routing.top_k], order[:, : routing.top_k]
    top = best[:, :1]
    chosen = exp(best - top) / _exp_sum(best if routing.softmax_chosen else known, top)[:, None]
    if routing.renormalise:
        total = torch.zeros_like(chosen[:, 0])
        for weight in chosen.unbind(1):
            total = total + weight
        chosen = chosen / total[:, None]
    ids[:tokens] = order.int()
    weights[:tokens] = chosen * routing.scale


def _exp_sum(values: Tensor, top: Tensor) -> Tensor:
    """Sum of exp(value - top): of every 16th value, then of these by halves."""
    padded = pad(values, (0, -values.shape[1] % LANES), value=-torch.inf)
    sums = torch.zeros_like(padded[:, :LANES])
    for some in exp(padded - top).unflatten(1, (-1, LANES)).unbind(1):
        sums = sums + some
    return add_lanes(sums)
