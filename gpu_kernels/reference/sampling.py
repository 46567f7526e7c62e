"""Drawing tokens in torch, by the rules of the daemon's sampler: the same number picks the same token.

Its weights may differ by the last bit from those that NumPy computes, so a number within about 1e-7 of the border
between two tokens may pick the other one.
"""

import torch
from torch import Tensor

NO_TOKEN = -1  # of a row with a NaN, or without a finite best
_SHORT_NUCLEUS = 256  # as long as that, it is drawn from in the order of rank
_BUCKETS, _BUCKETS_PER_UNIT = 2048, 32  # of log-probability, for longer ones
_COLDEST = torch.finfo(torch.float32).tiny


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor, out: Tensor
) -> None:
    """See `Kernels.sample`."""
    rules = zip(*(x.tolist() for x in (temperature, top_k, top_p, min_p, uniform)), strict=True)
    for row, (heat, kept, share, floor, number) in enumerate(rules):
        scores = logits[row]
        best = scores.argmax()  # the first of equal ones; a NaN counts as the best
        if not torch.isfinite(scores[best]):
            out[row] = NO_TOKEN
        elif heat == 0:
            out[row] = best
        else:
            scaled = (scores - scores[best]) / torch.full_like(scores, heat).clamp(min=_COLDEST)
            out[row] = _drawn(scaled, kept, share, floor, number)


def _drawn(scaled: Tensor, top_k: int, top_p: float, min_p: float, uniform: float) -> Tensor:
    """A token from its logits less the best, in units of the temperature: the filters in their order, then the draw."""
    ids = torch.arange(len(scaled), device=scaled.device)
    if 0 < top_k < len(scaled):
        ids = _ranked(scaled)[:top_k]
    if top_p < 1:
        ids = ids[_nucleus(scaled[ids], top_p)]
    weights = _weights(scaled[ids])
    weights = torch.where(weights < torch.full_like(weights, min_p), 0, weights)
    return ids[_inverted(weights, uniform)]


def _weights(scaled: Tensor) -> Tensor:
    return scaled.double().exp().float()  # the nearest float32 on any device


def _ranked(values: Tensor) -> Tensor:
    """Indices, best first, equal ones by the lower index."""
    return torch.argsort(-values, stable=True)


def _nucleus(scaled: Tensor, top_p: float) -> Tensor:
    """The indices of the shortest run of the best whose probability reaches top_p, never empty, best first. Of a long
    one, all whose bucket is above the border come first, in their own order."""
    weights, ranks = _weights(scaled), _ranked(scaled)
    needed = top_p * float(weights.sum(dtype=torch.float64))
    short = ranks[:_SHORT_NUCLEUS]
    reach = _reach(weights[short], needed)
    if reach < len(short) or len(short) == len(ranks):
        return short[: reach + 1]
    buckets = (scaled * -_BUCKETS_PER_UNIT).clamp(max=_BUCKETS - 1).int()
    sums = torch.bincount(buckets, weights.double())
    border = min(_reach(sums, needed), len(sums) - 1)
    edge = ranks[buckets[ranks] == border]
    reach = _reach(weights[edge], needed - float(sums[:border].sum()))
    return torch.cat([torch.nonzero(buckets < border)[:, 0], edge[: reach + 1]])


def _reach(weights: Tensor, needed: float) -> int:
    """The first place at which the running sum of the weights is at least `needed`; their number if it never is."""
    return int(torch.searchsorted(weights.double().cumsum(0), needed))


def _inverted(weights: Tensor, uniform: float) -> Tensor:
    """The place where the running sum of the weights passes `uniform` of its total; never one of weight 0."""
    sums = weights.double().cumsum(0)
    below = torch.nextafter(sums[-1], torch.zeros_like(sums[-1]))
    return torch.searchsorted(sums, torch.minimum(uniform * sums[-1], below), right=True)
