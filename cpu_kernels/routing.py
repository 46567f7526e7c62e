"""Which experts a token goes to, and which tokens an expert gets."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from .claim import claim
from .descriptor import COUNTER, slots
from .jit import kernel
from .memory import atomic_add, float_from_bits, read_f32, read_i64, write_f32, write_i64
from .simd import Emit, Value, f32, i32, micro_kernel

_SHARED = ("ids", "num_experts", "top_k", "count_slot")
ROUTE_FIELDS = (*_SHARED, "logits", "logits_stride", "score", "renormalise", "scale", "weights")
GROUP_FIELDS = (*_SHARED, "offsets", "order", "position", "active", "num_active")
(IDS, NUM_EXPERTS, TOP_K, COUNT_SLOT, LOGITS, LOGITS_STRIDE, SCORE, RENORMALISE, SCALE, WEIGHTS) = slots(ROUTE_FIELDS)
(_, _, _, _, OFFSETS, ORDER, POSITION, ACTIVE, NUM_ACTIVE) = slots(GROUP_FIELDS)
SOFTMAX_ALL, SOFTMAX_CHOSEN = 0, 1  # values of `score`

_LOWEST = np.float32(-np.inf)


@micro_kernel(types.float32)
def exp_sum(e: Emit, values: Value, count: Value, top: Value) -> Value:
    """Sum of exp(value - top) over `count` float32; NaN counts as -inf."""
    source, lowest = e.pointer(values), e.splat(ir.Constant(f32, float("-inf")))
    highest = e.splat(top)

    def body(index: Value, sums: list[Value]) -> list[Value]:
        left = e.b.sub(count, e.b.shl(index, e.const(4)))
        value = e.load_some(source, e.b.shl(index, e.const(6)), left)
        wanted = e.b.and_(e.lanes_below(left), e.b.fcmp_ordered("==", value, value))
        return [e.b.fadd(sums[0], e.exp(e.b.fsub(e.b.select(wanted, value, lowest), highest)))]

    return e.sum(e.loop(e.b.lshr(e.b.add(count, e.const(15)), e.const(4)), [e.zero()], body)[0])


@micro_kernel(types.float32)
def exp_of(e: Emit, x: Value) -> Value:
    """exp of one float32, the same to the last bit as in `exp_sum`."""
    return e.b.extract_element(e.exp(e.splat(x)), ir.Constant(i32, 0))


@kernel
def _choose(logits: int, num_experts: int, top_k: int, ids: int, best: int) -> None:
    """The top_k logits in descending order to float32 `best`, their numbers to int64 `ids`, by insertion."""
    filled = 0
    for expert in range(num_experts):
        value = read_f32(logits + 4 * expert)
        if value != value:
            value = _LOWEST
        if filled == top_k:
            if not value > read_f32(best + 4 * (top_k - 1)):
                continue
            filled -= 1
        place = filled
        while place > 0 and value > read_f32(best + 4 * (place - 1)):
            write_f32(best + 4 * place, read_f32(best + 4 * (place - 1)))
            write_i64(ids + 8 * place, read_i64(ids + 8 * (place - 1)))
            place -= 1
        write_f32(best + 4 * place, value)
        write_i64(ids + 8 * place, expert)
        filled += 1


@kernel
def _weigh(weights: int, top_k: int, top: float, total: float, renormalise: int, scale: Any) -> None:
    """Turn the chosen logits at `weights` into exp(logit - top) / total, then renormalise and scale."""
    chosen = np.float32(0)
    for place in range(top_k):
        weight = exp_of(read_f32(weights + 4 * place) - top) / total
        write_f32(weights + 4 * place, weight)
        chosen += weight
    for place in range(top_k):
        weight = read_f32(weights + 4 * place)
        if renormalise != 0:
            weight = weight / chosen
        write_f32(weights + 4 * place, weight * scale)


@kernel
def route(d: Any, step: Any, worker: int) -> None:
    """Best top_k experts of each token and their weights; ties to the lower number. Items: tokens.

    score: softmax over all experts (0) or over the chosen (1). A NaN logit counts as -inf.
    """
    count, top_k = step[d[COUNT_SLOT]], d[TOP_K]
    while True:
        token = claim(d, step, worker, count)
        if token < 0:
            break
        logits, weights = d[LOGITS] + token * d[LOGITS_STRIDE], d[WEIGHTS] + 4 * token * top_k
        _choose(logits, d[NUM_EXPERTS], top_k, d[IDS] + 8 * token * top_k, weights)
        top = read_f32(weights)
        everyone = d[SCORE] == SOFTMAX_ALL
        total = exp_sum(logits if everyone else weights, d[NUM_EXPERTS] if everyone else top_k, top)
        _weigh(weights, top_k, top, total, d[RENORMALISE], np.float32(float_from_bits(d[SCALE])))


@kernel
def _count(ids: int, pairs: int, num_experts: int, offsets: int, cursors: int) -> None:
    """offsets [num_experts + 1] and, per expert, a cursor at the start of its range."""
    for expert in range(num_experts + 1):
        write_i64(offsets + 8 * expert, 0)
    for pair in range(pairs):
        expert = 0 if ids == 0 else read_i64(ids + 8 * pair)
        if expert < num_experts:
            at = offsets + 8 * (1 + expert)
            write_i64(at, read_i64(at) + 1)
    for expert in range(num_experts):
        start = read_i64(offsets + 8 * expert)
        write_i64(cursors + 8 * expert, start)
        write_i64(offsets + 8 * (expert + 1), start + read_i64(offsets + 8 * (expert + 1)))


@kernel
def group(d: Any, step: Any, worker: int) -> None:
    """Sort the pairs (token, choice) by expert, by token inside an expert. One item.

    ids 0: a single expert that takes every pair. `active` lists the experts that have pairs, `num_active` counts them.
    A pair whose id is num_experts is somebody else's: it is left out, and its `position` is not touched.
    """
    if atomic_add(d[COUNTER], 1) != 0:
        return
    pairs, ids, cursors = step[d[COUNT_SLOT]] * d[TOP_K], d[IDS], d[ACTIVE]
    _count(ids, pairs, d[NUM_EXPERTS], d[OFFSETS], cursors)
    for pair in range(pairs):
        expert = 0 if ids == 0 else read_i64(ids + 8 * pair)
        if expert >= d[NUM_EXPERTS]:
            continue
        cursor = cursors + 8 * expert
        place = read_i64(cursor)
        write_i64(cursor, place + 1)
        write_i64(d[ORDER] + 8 * place, pair)
        write_i64(d[POSITION] + 8 * pair, place)
    active = 0
    for expert in range(d[NUM_EXPERTS]):
        if read_i64(d[OFFSETS] + 8 * expert) < read_i64(d[OFFSETS] + 8 * (expert + 1)):
            write_i64(d[ACTIVE] + 8 * active, expert)
            active += 1
    write_i64(d[NUM_ACTIVE], active)
