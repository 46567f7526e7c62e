"""Which experts a token goes to, and how much each counts."""

import torch
import triton
import triton.language as tl

from ..kernels import Routing
from .arithmetic import exp_of
from .jit import EXACT, kernel
from .lanes import sum_lanes


@kernel
def _sum(x, SIZE: tl.constexpr):
    """The sum of x [SIZE]: 16 lanes, of which each adds one number after the other, then the lanes."""
    rows, number = tl.reshape(x, (SIZE // 16, 16)), tl.arange(0, SIZE // 16)[:, None]
    total = tl.zeros((16,), tl.float32)
    for row in range(SIZE // 16):
        total += tl.sum(tl.where(number == row, rows, 0.0), axis=0)
    return tl.sum(sum_lanes(tl.reshape(total, (1, 16)), 1), axis=0)


@kernel
def route_kernel(
    logits, count, sizes, scale, ids, weights,
    RULE: tl.constexpr, WIDTH: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """logits: (numbers, stride of a row); sizes: (experts, top_k); RULE: (softmax over the chosen, renormalise)."""
    token = tl.program_id(0).to(tl.int64)
    if token >= tl.load(count):
        return
    experts, top_k = sizes
    expert, place = tl.arange(0, WIDTH), tl.arange(0, PLACES)
    left = expert < experts
    value = tl.load(logits[0] + token * logits[1] + expert, mask=left, other=float("-inf"))
    value = tl.where(value != value, float("-inf"), value)
    best, chosen = tl.full((PLACES,), float("-inf"), tl.float32), tl.zeros((PLACES,), tl.int32)
    for number in range(top_k):
        top = tl.max(tl.where(left, value, float("-inf")), axis=0)
        one = tl.min(tl.where(left & (value == top), expert, WIDTH), axis=0)
        best, chosen = tl.where(place == number, top, best), tl.where(place == number, one, chosen)
        left = left & (expert != one)
    top = tl.max(best, axis=0)
    total = _sum(exp_of(best - top), PLACES) if RULE[0] else _sum(exp_of(value - top), WIDTH)
    weight = tl.div_rn(exp_of(best - top), total)
    if RULE[1]:
        total = 0.0
        for number in range(top_k):
            total += tl.sum(tl.where(place == number, weight, 0.0), axis=0)
        weight = tl.div_rn(weight, total)
    tl.store(ids + token * top_k + place, chosen, mask=place < top_k)
    tl.store(weights + token * top_k + place, weight * scale, mask=place < top_k)


def route(
    logits: torch.Tensor, routing: Routing, ids: torch.Tensor, weights: torch.Tensor, count: torch.Tensor
) -> None:
    """ids int32 [T, K], weights float32 [T, K] of logits [T, E]: best first, ties to the lower id. A NaN is least."""
    tokens, experts = logits.shape
    route_kernel[(tokens,)](
        (logits, logits.stride(0)),
        count,
        (experts, routing.top_k),
        routing.scale,
        ids,
        weights,
        RULE=(routing.softmax_chosen, routing.renormalise),
        WIDTH=max(16, triton.next_power_of_2(experts)),
        PLACES=max(16, triton.next_power_of_2(routing.top_k)),
        **EXACT,
    )
