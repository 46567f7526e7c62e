"""Finishing q, k and v of a token: norm, rotary embedding, and the store of k and v into the paged cache.

Keys of block b and head h of a layer lie at k_cache + b * block_bytes + h * head_bytes, its values so from v_cache.
"""

from typing import Any

from llvmlite import ir

from .claim import claim
from .descriptor import N_TOKENS, slots
from .jit import kernel
from .kv_write import write_key, write_value
from .layout import KV_BLOCK
from .memory import float_from_bits, read_i64, row_number
from .norm import norm_factor
from .simd import Emit, Value, f32, micro_kernel

FIELDS = (
    *("q", "q_stride", "k", "k_stride", "v", "v_stride", "q_norm", "k_norm", "norm_mode", "eps"),
    *("heads", "kv_heads", "head_dim", "rotary_dim", "cosines", "sines", "q_scale", "positions", "slots"),
    *("k_cache", "v_cache", "kv_kind", "block_bytes", "head_bytes", "clip"),
    *("count_slot", "rows"),
)
(Q, Q_STRIDE, K, K_STRIDE, V, V_STRIDE, Q_NORM, K_NORM, NORM_MODE, EPS,
 HEADS, KV_HEADS, HEAD_DIM, ROTARY_DIM, COSINES, SINES, Q_SCALE, POSITIONS, SLOTS,
 K_CACHE, V_CACHE, KV_KIND, BLOCK_BYTES, HEAD_BYTES, CLIP, COUNT_SLOT, ROWS) = slots(FIELDS)  # fmt: skip
NO_NORM, NORM_EACH_HEAD, NORM_ALL_HEADS = 0, 1, 2  # values of `norm_mode`
STEP = 8  # every head_dim is a multiple of it
f32x8 = ir.VectorType(f32, STEP)


def _each_step(e: Emit, count: Value, body: Any) -> None:
    """body(byte offset of 8 floats) for `count` floats."""

    def one(index: Value, _: list[Value]) -> list[Value]:
        body(index, e.b.shl(index, e.const(5)))
        return []

    e.loop(e.b.lshr(count, e.const(3)), [], one)


@micro_kernel()
def _apply_norm(e: Emit, row: Value, weight: Value, count: Value, factor: Value) -> None:
    x, w, scale = e.pointer(row), e.pointer(weight), e.splat(factor, STEP)

    def body(_: Value, at: Value) -> None:
        e.store(e.b.fmul(e.b.fmul(e.load(f32x8, x, at), scale), e.load(f32x8, w, at)), x, at)

    _each_step(e, count, body)


@micro_kernel()
def _multiply(e: Emit, row: Value, count: Value, factor: Value) -> None:
    x, scale = e.pointer(row), e.splat(e.b.fptrunc(factor, f32), STEP)
    _each_step(e, count, lambda _, at: e.store(e.b.fmul(e.load(f32x8, x, at), scale), x, at))


@micro_kernel()
def _clamp(e: Emit, row: Value, count: Value, limit: Value) -> None:
    """To -limit .. limit; a NaN passes."""
    x, ceiling = e.pointer(row), e.splat(e.b.fptrunc(limit, f32), STEP)
    floor = e.b.fneg(ceiling)

    def body(_: Value, at: Value) -> None:
        e.store(e.clamp(e.load(f32x8, x, at), floor, ceiling), x, at)

    _each_step(e, count, body)


@micro_kernel()
def _rotate(e: Emit, row: Value, cosines: Value, sines: Value, half: Value) -> None:
    """Elements i and i + half of the row, by the i-th angle."""
    x, cos_row, sin_row = e.pointer(row), e.pointer(cosines), e.pointer(sines)
    y = e.at(x, e.b.shl(half, e.const(2)))

    def body(index: Value, _: list[Value]) -> list[Value]:
        at, left = e.b.shl(index, e.const(6)), e.b.sub(half, e.b.shl(index, e.const(4)))
        a, b, cos, sin = (e.load_some(source, at, left) for source in (x, y, cos_row, sin_row))
        e.store_some(e.b.fsub(e.b.fmul(a, cos), e.b.fmul(b, sin)), x, at, left)
        e.store_some(e.b.fadd(e.b.fmul(b, cos), e.b.fmul(a, sin)), y, at, left)
        return []

    e.loop(e.b.lshr(e.b.add(half, e.const(15)), e.const(4)), [], body)


@kernel
def _norm_and_rotate(d: Any, row: int, heads: int, weight: int, position: int) -> None:
    """All heads of a q or k row, in place."""
    head_dim, half, mode = d[HEAD_DIM], d[ROTARY_DIM] // 2, d[NORM_MODE]
    eps = float_from_bits(d[EPS])
    if mode == NORM_ALL_HEADS:
        _apply_norm(row, weight, heads * head_dim, norm_factor(row, heads * head_dim, eps))
    clip = float_from_bits(d[CLIP])
    if clip > 0:
        _clamp(row, heads * head_dim, clip)
    cosines, sines = d[COSINES] + position * half * 4, d[SINES] + position * half * 4
    for head in range(heads):
        x = row + head * head_dim * 4
        if mode == NORM_EACH_HEAD:
            _apply_norm(x, weight, head_dim, norm_factor(x, head_dim, eps))
        _rotate(x, cosines, sines, half)


@kernel
def _finish_query(d: Any, token: int) -> None:
    q = d[Q] + token * d[Q_STRIDE]
    _norm_and_rotate(d, q, d[HEADS], d[Q_NORM], read_i64(d[POSITIONS] + 8 * token))
    _multiply(q, d[HEADS] * d[HEAD_DIM], float_from_bits(d[Q_SCALE]))


@kernel
def _store(d: Any, k: int, v: int, slot: int) -> None:
    """A token's k and v rows into the cache."""
    head_dim, offset = d[HEAD_DIM], slot % KV_BLOCK
    part = slot // KV_BLOCK * d[BLOCK_BYTES]
    for head in range(d[KV_HEADS]):
        write_key(k + head * head_dim * 4, d[K_CACHE] + part, head_dim, offset, d[KV_KIND])
        write_value(v + head * head_dim * 4, d[V_CACHE] + part, head_dim, offset, d[KV_KIND])
        part += d[HEAD_BYTES]


@kernel
def rope_store(d: Any, step: Any, worker: int) -> None:
    """q: norm, clip, rope, scale, in place. k: norm, clip, rope (in place), to the cache. v: to the cache.

    Items: tokens. count_slot, rows: how many tokens matter, and which, if not all; of others q stays as it is. clip:
    limit of q and k after a norm over all heads; 0 for none.
    """
    count, wanted = step[N_TOKENS], step[d[COUNT_SLOT]]
    while True:
        token = claim(d, step, worker, count)
        if token < 0:
            break
        if token < wanted:
            _finish_query(d, row_number(d[ROWS], token))
        k = d[K] + token * d[K_STRIDE]
        _norm_and_rotate(d, k, d[KV_HEADS], d[K_NORM], read_i64(d[POSITIONS] + 8 * token))
        _store(d, k, d[V] + token * d[V_STRIDE], read_i64(d[SLOTS] + 8 * token))
