"""The micro-kernel of matrix products with float weights: one tile (16 rows) times a few activation records.

A row's sum has a fixed order for every number of tokens: two partial sums, of every other column (of every other pair
for bfloat16), in the order of the columns, and their sum. One alone would wait for its last addition: bfloat16 ran at
30 GB/s from the cache.
"""

from collections.abc import Callable
from typing import Any

from ..bfloat import dot_pairs
from ..features import Tier
from ..layout import KINDS
from ..simd import Emit, Value, f32, f32x16, i32, i32x16, i64, micro_kernel

_CHAINS = 2
_STEP = 8  # vectors of weights per turn of the loop
_BUSY, _AHEAD = 4, 4608  # as for integer weights: with so many tokens, ask for what lies so many bytes ahead


def dot_floats(kind: str, tier: Tier | None = None) -> Any:
    """The intrinsic `(count, w, spans, rows, out, out_stride)`, as `dot_tile` makes them, for a kind without codes."""

    @micro_kernel(tier=tier)
    def dot(e: Emit, count: Value, w: Value, spans: Value, rows: Value, out: Value, out_stride: Value) -> None:
        def some(tokens: int, done: Value) -> None:
            table = e.at(e.pointer(rows), e.b.mul(done, e.const(8)))
            target = e.at(e.pointer(out), e.b.mul(done, out_stride))
            for t, total in enumerate(_sums(e, kind, tokens, e.pointer(w), spans, table)):
                e.store(total, target, e.b.mul(out_stride, e.const(t)), 4)

        def whole(turn: Value, _: list[Value]) -> list[Value]:
            some(most, e.b.mul(turn, e.const(most)))
            return []

        most = 8 if e.tier.registers == 32 else 2
        turns = e.b.udiv(count, e.const(most))
        e.loop(turns, [], whole)
        done = e.b.mul(turns, e.const(most))
        for tokens in range(1, most):
            with e.b.if_then(e.b.icmp_signed("==", e.b.sub(count, done), e.const(tokens))):
                some(tokens, done)

    return dot


def _sums(e: Emit, kind: str, tokens: int, tile: Value, spans: Value, table: Value) -> list[Value]:
    """The tile times `tokens` records, whose addresses are at `table`: f32x16 each."""
    records = [e.pointer(e.load(i64, table, 8 * t, 8)) for t in range(tokens)]
    add, vector_bytes = FLOATS[kind]

    def step(turn: Value, sums: list[Value]) -> list[Value]:
        here = e.at(tile, e.b.mul(turn, e.const(_STEP * vector_bytes)))
        inputs = [e.at(record, e.b.mul(turn, e.const(4 * _STEP))) for record in records]
        sums = list(sums)
        if tokens >= _BUSY:
            for line in range(0, _STEP * vector_bytes, 64):
                e.prefetch(here, _AHEAD + line)
        for v in range(_STEP):
            chain = v % _CHAINS * tokens
            sums[chain : chain + tokens] = add(e, here, v, inputs, sums[chain : chain + tokens])
        return sums

    turns = e.b.mul(spans, e.const(KINDS[kind].unit_bytes // (_STEP * vector_bytes)))
    sums = e.loop(turns, [e.zero()] * (_CHAINS * tokens), step)
    return [e.b.fadd(sums[t], sums[tokens + t]) for t in range(tokens)]


# (tile, number of the vector in it, records at the same place, sums) -> sums, one a token
_Add = Callable[[Emit, Value, int, list[Value], list[Value]], list[Value]]


def _columns(load: Callable[[Emit, Value, int], Value]) -> _Add:
    """Sums of one column times float32 activations."""

    def add(e: Emit, tile: Value, v: int, inputs: list[Value], sums: list[Value]) -> list[Value]:
        rows = load(e, tile, v)
        return [e.fma(rows, e.splat(e.load(f32, x, 4 * v, 4)), s) for x, s in zip(inputs, sums, strict=True)]

    return add


def _pairs(e: Emit, tile: Value, v: int, inputs: list[Value], sums: list[Value]) -> list[Value]:
    """Sums of two columns times bfloat16 activations."""
    rows = e.load(i32x16, tile, 64 * v, 64)
    return [dot_pairs(e, s, rows, e.load(i32, x, 4 * v, 4)) for x, s in zip(inputs, sums, strict=True)]


FLOATS: dict[str, tuple[_Add, int]] = {
    "f32": (_columns(lambda e, tile, v: e.load(f32x16, tile, 64 * v, 64)), 64),
    "f16": (_columns(lambda e, tile, v: e.load_half(tile, 32 * v)), 32),
    "bf16": (_pairs, 64),
}
