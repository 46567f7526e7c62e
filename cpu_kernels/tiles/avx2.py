"""Integer dot products by byte multiply-adds of 256 bits, where there is no instruction that sums four products."""

from functools import reduce

from llvmlite import ir

from ..layout import Codes
from ..simd import Emit, Value, i8, i32, i32x16
from .codes import unsigned_codes

_Blocks = list[tuple[int, int]]  # half of the span, 4 columns in it
_i8x32, _i16x16, _i32x8 = ir.VectorType(i8, 32), ir.VectorType(ir.IntType(16), 16), ir.VectorType(i32, 8)


def dots_by_pairs(
    e: Emit, codes: Codes, tile: Value, inputs: list[Value], blocks: _Blocks, corrections: list[Value]
) -> list[Value]:
    """Per token, exact sums of weight (in units of its scale) times code over `blocks` of 4 columns.

    corrections: per token, what codes without their offset have to be brought down by.
    """
    result = []
    for x, correction in zip(inputs, corrections, strict=True):
        sides = [_side_dot(e, codes, tile, x, blocks, side) for side in (0, 1)]
        dots = e.b.shuffle_vector(*sides, ir.Constant(i32x16, list(range(16))))
        result.append(dots if _signed(codes) else e.b.add(dots, correction))
    return result


def _signed(codes: Codes) -> bool:
    """Whether codes are too large for unsigned bytes times signed ones in 16 bits, and are made signed instead."""
    return codes.offset == 128


def _side_dot(e: Emit, codes: Codes, tile: Value, x: Value, blocks: _Blocks, side: int) -> Value:
    """Rows 8 * side .. 8 * side + 7: int32 sums over the blocks."""
    # how many sums of two products add up in 16 bits; 2 x 128 x 127 of signed codes do once
    together = 1 if _signed(codes) else 32767 // (2 * 127 * max(codes.unsigned))
    total = e.zero(_i32x8)
    for first in range(0, len(blocks), together):
        products = [_side_products(e, codes, tile, x, block, side) for block in blocks[first : first + together]]
        pairs = e.call("llvm.x86.avx2.pmadd.wd", _i32x8, [reduce(e.b.add, products), e.constant(_i16x16, 1)])
        total = e.b.add(total, pairs)
    return total


def _side_products(e: Emit, codes: Codes, tile: Value, x: Value, place: tuple[int, int], side: int) -> Value:
    """Int16 sums of two products of a block."""
    half, block = place
    weights = e.shuffle(unsigned_codes(e, codes, tile, half, block), range(32 * side, 32 * side + 32))
    activations = e.b.bitcast(e.splat(e.load(i32, x, 4 * block, 4), 8), _i8x32)
    if _signed(codes):
        weights = e.b.xor(weights, e.constant(_i8x32, 0x80))
        activations = e.call("llvm.x86.avx2.psign.b", _i8x32, [activations, weights])
        weights = e.call("llvm.abs.v32i8", _i8x32, [weights, ir.Constant(ir.IntType(1), 0)])
    return e.call("llvm.x86.avx2.pmadd.ub.sw", _i16x16, [weights, activations])
