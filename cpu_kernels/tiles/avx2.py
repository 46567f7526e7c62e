"""Integer dot products by byte multiply-adds of 256 bits, where there is no instruction that sums four products.

A tile's rows come as two sides, 0 .. 7 and 8 .. 15. Two products add up to 16 bits; as many of those as fit are summed
before they are widened, and the order of all of it is pinned: else the compiler runs ahead and spills registers.
"""

from collections.abc import Sequence

from llvmlite import ir

from ..layout import Codes
from ..simd import Emit, Value, i8, i8x64, i32
from .codes import stored_codes, unsigned_codes

_i8x32, _i16x16, _i32x8 = ir.VectorType(i8, 32), ir.VectorType(ir.IntType(16), 16), ir.VectorType(i32, 8)

_Blocks = Sequence[tuple[int, int]]  # half of the span, 4 columns in it


def dots_by_pairs(
    e: Emit, codes: Codes, planes: Value, inputs: list[Value], blocks: _Blocks, corrections: list[Value]
) -> list[Value]:
    """Per token, exact sums of weight (in units of its scale) times code over the blocks. At best for 4 tokens.

    corrections: per token, what codes without their offset have to be brought down by.
    """
    dots = [e.join(sides) for sides in _side_dots(e, codes, planes, inputs, blocks)]
    return dots if _signed(codes) else [e.b.add(*both) for both in zip(dots, corrections, strict=True)]


def _signed(codes: Codes) -> bool:
    """Whether codes are too large for unsigned bytes times signed ones in 16 bits, and are made signed instead."""
    return codes.offset == 128


def _together(codes: Codes) -> int:
    """How many sums of two products add up in 16 bits; 2 x 128 x 127 of signed codes do once."""
    return 1 if _signed(codes) else 32767 // (2 * 127 * max(codes.unsigned))


def _side_dots(e: Emit, codes: Codes, planes: Value, inputs: list[Value], blocks: _Blocks) -> list[list[Value]]:
    """Per token, of either side int32 sums over the blocks."""
    together = _together(codes)
    totals: list[list[Value | None]] = [[None, None] for _ in inputs]
    pairs: list[list[Value | None]] = [[None, None] for _ in inputs]
    for number, (half, block) in enumerate(blocks, 1):
        weights = e.halves(_weights(e, codes, planes, half, block))
        is_last = number % together == 0 or number == len(blocks)
        for t, x in enumerate(inputs):
            activations = e.b.bitcast(e.splat(e.load(i32, x, 4 * block, 4), 8), _i8x32)
            for side in (0, 1):
                pair = _plus(e, pairs[t][side], _products(e, codes, weights[side], activations))
                pairs[t][side] = None if is_last else pair
                if is_last:
                    four = e.call("llvm.x86.avx2.pmadd.wd", _i32x8, [pair, e.constant(_i16x16, 1)])
                    totals[t][side] = _plus(e, totals[t][side], four)
    return totals


def _plus(e: Emit, total: Value | None, term: Value) -> Value:
    """The sum, computed before what comes later."""
    value = term if total is None else e.b.add(total, term)
    return e.b.asm(ir.FunctionType(value.type, [value.type]), "", "=x,0", [value], True)


def _weights(e: Emit, codes: Codes, planes: Value, half: int, block: int) -> Value:
    """Of a block, bytes in units of their scales: with the offset, or signed."""
    if not _signed(codes):
        return unsigned_codes(e, codes, planes, half, block)
    stored = stored_codes(e, codes, planes, half, block)
    if codes.table:
        return e.lookup([entry % 256 for entry in codes.table], stored)
    return e.b.xor(stored, e.constant(i8x64, codes.offset))


def _products(e: Emit, codes: Codes, weights: Value, activations: Value) -> Value:
    """Int16 sums of two products of bytes."""
    if _signed(codes):
        activations = e.call("llvm.x86.avx2.psign.b", _i8x32, [activations, weights])
        weights = e.call("llvm.abs.v32i8", _i8x32, [weights, ir.Constant(ir.IntType(1), 0)])
    return e.call("llvm.x86.avx2.pmadd.ub.sw", _i16x16, [weights, activations])
