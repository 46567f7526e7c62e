"""Adding the experts' outputs to the residual stream, in rank order.

With few of them `down` has done so already.
"""

from typing import Any

import numpy as np
from llvmlite import ir

from .claim import claim
from .descriptor import slots
from .jit import kernel
from .memory import read_f32, row_number
from .routing import exp_of
from .simd import Emit, Value, f32, f32x16, i64, micro_kernel

FIELDS = (
    *("x", "x_stride", "n", "outs", "outs_stride", "top_k", "position", "weights", "gate", "gate_stride", "few"),
    *("count_slot", "rows"),
)
(
    X, X_STRIDE, N, OUTS, OUTS_STRIDE, TOP_K, POSITION, WEIGHTS, GATE, GATE_STRIDE, FEW,
    COUNT_SLOT, ROWS,
) = slots(FIELDS)  # fmt: skip
ROUNDING = 1e-6  # of the sum of weights that were made to add up to one
UNROLL = 4  # vectors of 16 columns that share the loop over the experts


def _weight(e: Emit, weights: Value, choice: Value) -> Value:
    """weights[choice], or 1 where there are no weights."""
    before = e.b.block
    with e.b.if_then(e.b.icmp_signed("!=", weights, e.const(0))):
        inside = e.b.block
        loaded = e.load(f32, e.pointer(weights), e.b.shl(choice, e.const(2)), 4)
    weight = e.b.phi(f32)
    weight.add_incoming(ir.Constant(f32, 1.0), before)
    weight.add_incoming(loaded, inside)
    return weight


def _whole_weight(e: Emit, weights: Value, top_k: Value) -> Value:
    """The sum of the weights; one where only their rounding keeps it from that."""
    one = ir.Constant(f32, 1.0)
    (total,) = e.loop(
        top_k, [ir.Constant(f32, 0.0)], lambda choice, sums: [e.b.fadd(sums[0], _weight(e, weights, choice))]
    )
    distance = e.call("llvm.fabs.f32", f32, [e.b.fsub(total, one)])
    return e.b.select(e.b.fcmp_ordered("<", distance, ir.Constant(f32, ROUNDING)), one, total)


@micro_kernel()
def _add_columns(
    e: Emit,
    x: Value,
    n: Value,
    outs: Value,
    stride: Value,
    top_k: Value,
    position: Value,
    weights: Value,
    gate: Value,
) -> None:
    """x[n] += gate * (sum over the choices of weight * row `position` of outs).

    Computed as (sum of weights) * last + sum of weight * (row - last): experts that agree give exactly what one gives.
    """
    whole = e.splat(_whole_weight(e, weights, top_k))
    row, source, places, scale = e.pointer(x), e.pointer(outs), e.pointer(position), e.splat(gate)
    others = e.b.sub(top_k, e.const(1))

    def total(offset: Value, vectors: int, load: Any) -> list[Value]:
        def rows_of(index: Value) -> list[Value]:
            place = e.load(i64, places, e.b.shl(index, e.const(3)), 8)
            at = e.b.add(e.b.mul(place, stride), offset)
            return [load(e.at(source, 64 * i), at) for i in range(vectors)]

        last = rows_of(others)

        def choice(index: Value, sums: list[Value]) -> list[Value]:
            weight = e.splat(_weight(e, weights, index))
            triples = zip(rows_of(index), last, sums, strict=True)
            return [e.fma(weight, e.b.fsub(row, final), acc) for row, final, acc in triples]

        return e.loop(others, [e.b.fmul(whole, final) for final in last], choice)

    def four(index: Value, _: list[Value]) -> list[Value]:
        offset = e.b.shl(index, e.const(8))
        for i, acc in enumerate(total(offset, UNROLL, lambda pointer, at: e.load(f32x16, pointer, at))):
            at = e.at(row, 64 * i)
            e.store(e.fma(scale, acc, e.load(f32x16, at, offset)), at, offset)
        return []

    def rest(index: Value, _: list[Value]) -> list[Value]:
        start = e.b.add(e.b.shl(index, e.const(4)), e.b.and_(n, e.const(-16 * UNROLL)))
        offset, left = e.b.shl(start, e.const(2)), e.b.sub(n, start)
        (acc,) = total(offset, 1, lambda pointer, at: e.load_some(pointer, at, left))
        e.store_some(e.fma(scale, acc, e.load_some(row, offset, left)), row, offset, left)
        return []

    e.loop(e.b.udiv(n, e.const(16 * UNROLL)), [], four)
    remaining = e.b.urem(n, e.const(16 * UNROLL))
    e.loop(e.b.udiv(e.b.add(remaining, e.const(15)), e.const(16)), [], rest)


@kernel
def gate_of(gates: int, stride: int, token: int) -> Any:
    """sigmoid(gate[token]); 1 where there are no gates."""
    if gates == 0:
        return np.float32(1)
    return np.float32(1) / (np.float32(1) + exp_of(-read_f32(gates + token * stride)))


@kernel
def add_choices(
    x: int, n: int, outs: int, stride: int, top_k: int, position: int, weights: int, gate: float, token: int
) -> None:
    """`_add_columns` for a token; position and weights are those of all tokens."""
    own = 0 if weights == 0 else weights + 4 * token * top_k
    _add_columns(x, n, outs, stride, top_k, position + 8 * token * top_k, own, gate)


@kernel
def combine(d: Any, step: Any, worker: int) -> None:
    """x[t] += sigmoid(gate[t]) * sum over choices j of weights[t, j] * outs[position[t * top_k + j]]. Items: tokens.

    weights 0: all 1; gate 0: no sigmoid. rows: 0, or address of the numbers of the tokens' rows of x. Does nothing if
    there are at most `few` choices in all.
    """
    count, top_k = step[d[COUNT_SLOT]], d[TOP_K]
    while count * top_k > d[FEW]:
        token = claim(d, step, worker, count)
        if token < 0:
            break
        x = d[X] + row_number(d[ROWS], token) * d[X_STRIDE]
        gate = gate_of(d[GATE], d[GATE_STRIDE], token)
        add_choices(x, d[N], d[OUTS], d[OUTS_STRIDE], top_k, d[POSITION], d[WEIGHTS], gate, token)
