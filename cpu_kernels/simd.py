"""Emitting LLVM IR for micro-kernels: 16-lane vectors, memory by raw address, loops with carried values.

A micro-kernel is one `@intrinsic` whose body is written with `Emit`. Vectors are always 16 lanes of 32 bits (or 64
bytes); LLVM splits them on narrower CPUs. Only the `llvm.x86.*` calls below depend on the CPU, and `Tier` guards them.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from .features import Tier, host_tier
from .jit import intrinsic

LANES = 16
i1, i8, i16, i32, i64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
f32, f64 = ir.FloatType(), ir.DoubleType()
i8x64, i16x16, i32x16 = ir.VectorType(i8, 64), ir.VectorType(i16, 16), ir.VectorType(i32, 16)
f32x16 = ir.VectorType(f32, LANES)
Value = Any  # llvmlite values carry no useful static types


class Emit:
    """An IRBuilder with the vocabulary of the kernels. Addresses are i64 values that came from memory.

    tier: which instructions may be used; the best that this process generates code for, if none is given.
    """

    def __init__(self, builder: Any, tier: Tier | None = None) -> None:
        self.b = builder
        self.tier = tier or host_tier()

    # -- constants and scalars
    def const(self, value: int) -> Value:
        return ir.Constant(i64, value)

    def pointer(self, address: Value) -> Value:
        """The one inttoptr of a base address; offsets from it go through `load` and `store`."""
        return self.b.inttoptr(address, i8.as_pointer())

    def at(self, pointer: Value, offset: Value | int) -> Value:
        """pointer + offset bytes."""
        return self.b.gep(pointer, [self.const(offset) if isinstance(offset, int) else offset])

    def call(self, name: str, result: Any, arguments: Sequence[Value]) -> Value:
        kind = ir.FunctionType(result, [a.type for a in arguments])
        return self.b.call(cgutils.get_or_insert_function(self.b.module, kind, name), arguments)

    # -- memory
    def load(self, kind: Any, pointer: Value, offset: Value | int = 0, align: int = 1) -> Value:
        value = self.b.load(self.b.bitcast(self.at(pointer, offset), kind.as_pointer()))
        value.align = align
        return value

    def store(self, value: Value, pointer: Value, offset: Value | int = 0, align: int = 1) -> None:
        self.b.store(value, self.b.bitcast(self.at(pointer, offset), value.type.as_pointer())).align = align

    def lanes_below(self, count: Value) -> Value:
        """Which of 16 lanes are below `count` (i64; may be negative or above 16, within 32 bits)."""
        numbers = ir.Constant(i32x16, list(range(LANES)))
        return self.b.icmp_signed("<", numbers, self.splat(self.b.trunc(count, i32)))

    def load_some(self, pointer: Value, offset: Value | int, count: Value) -> Value:
        """The first `count` float32 at the address, 0 in the other lanes; nothing beyond them is touched."""
        source = self.b.bitcast(self.at(pointer, offset), f32x16.as_pointer())
        arguments = [source, ir.Constant(i32, 4), self.lanes_below(count), self.zero()]
        return self.call("llvm.masked.load.v16f32.p0", f32x16, arguments)

    def store_some(self, value: Value, pointer: Value, offset: Value | int, count: Value) -> None:
        """Store the first `count` lanes of an f32x16."""
        target = self.b.bitcast(self.at(pointer, offset), f32x16.as_pointer())
        arguments = [value, target, ir.Constant(i32, 4), self.lanes_below(count)]
        self.call("llvm.masked.store.v16f32.p0", ir.VoidType(), arguments)

    def prefetch(self, pointer: Value, offset: Value | int = 0) -> None:
        """Ask for the cache line of an address that will be read soon, into the second level."""
        arguments = [self.at(pointer, offset), *(ir.Constant(i32, hint) for hint in (0, 2, 1))]
        self.call("llvm.prefetch.p0", ir.VoidType(), arguments)

    def keep_order(self) -> None:
        """Loads and stores stay on their side of this; no instruction."""
        nothing = ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), "", "~{memory}", side_effect=True)
        self.b.call(nothing, [])

    # -- vectors
    def splat(self, scalar: Value, lanes: int = LANES) -> Value:
        """`scalar` in every lane; a splat of a load folds into the instruction that uses it."""
        vector = ir.VectorType(scalar.type, lanes)
        undefined = ir.Constant(vector, ir.Undefined)
        first = self.b.insert_element(undefined, scalar, ir.Constant(i32, 0))
        return self.b.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(i32, lanes), [0] * lanes))

    def constant(self, kind: Any, value: float | int) -> Value:
        """A vector constant with `value` in every lane."""
        return ir.Constant(kind, [value] * kind.count)

    def zero(self, kind: Any = f32x16) -> Value:
        return ir.Constant(kind, None)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c, rounded once."""
        return self.call("llvm.fma.v16f32" if a.type == f32x16 else "llvm.fma.f32", a.type, [a, b, c])

    def maximum(self, a: Value, b: Value) -> Value:
        """The larger; b where either is NaN."""
        return self.b.select(self.b.fcmp_ordered(">", a, b), a, b)

    def minimum(self, a: Value, b: Value) -> Value:
        """The smaller; b where either is NaN."""
        return self.b.select(self.b.fcmp_ordered("<", a, b), a, b)

    def clamp(self, a: Value, low: Value, high: Value) -> Value:
        """`a` within low .. high; a NaN passes, so that it is seen."""
        return self.minimum(high, self.maximum(low, a))

    def absolute(self, a: Value) -> Value:
        return self.b.bitcast(self.b.and_(self.b.bitcast(a, i32x16), self.constant(i32x16, 0x7FFFFFFF)), f32x16)

    def round(self, a: Value) -> Value:
        """To the nearest integer, halves to even."""
        return self.call("llvm.roundeven.v16f32" if self.tier.half else "llvm.rint.v16f32", f32x16, [a])

    def square_root(self, a: Value) -> Value:
        return self.call("llvm.sqrt.f32", f32, [a])

    def shuffle(self, a: Value, order: Sequence[int]) -> Value:
        mask = ir.Constant(ir.VectorType(i32, len(order)), list(order))
        return self.b.shuffle_vector(a, ir.Constant(a.type, ir.Undefined), mask)

    def halves(self, a: Value) -> list[Value]:
        """The lower and the upper lanes of a vector."""
        width = a.type.count // 2
        return [self.shuffle(a, range(width * side, width * (side + 1))) for side in (0, 1)]

    def join(self, halves: Sequence[Value]) -> Value:
        """The vector with these halves."""
        low, high = halves
        return self.b.shuffle_vector(
            low, high, ir.Constant(ir.VectorType(i32, 2 * low.type.count), list(range(2 * low.type.count)))
        )

    def reduce(self, vector: Value, combine: Callable[[Value, Value], Value]) -> Value:
        """Fold the 16 lanes by halves: a fixed order, so the same sum on every CPU."""
        width = LANES
        while width > 1:
            width //= 2
            low, high = self.shuffle(vector, range(width)), self.shuffle(vector, range(width, 2 * width))
            vector = combine(low, high)
        return self.b.extract_element(vector, ir.Constant(i32, 0))

    def sum(self, vector: Value) -> Value:
        return self.reduce(vector, self.b.fadd)

    def max(self, vector: Value) -> Value:
        return self.reduce(vector, self.maximum)

    # -- 16-bit floats
    def load_half(self, pointer: Value, offset: Value | int = 0) -> Value:
        """16 float16 -> f32x16."""
        return self.half_to_float(self.load(i16x16, pointer, offset))

    def half_to_float(self, bits: Value) -> Value:
        """16 float16, given by their bits, -> f32x16."""
        if self.tier.half:
            return self.b.fpext(self.b.bitcast(bits, ir.VectorType(ir.HalfType(), 16)), f32x16)
        return self._half_bits_to_float(self.b.zext(bits, i32x16))

    def _half_bits_to_float(self, bits: Value) -> Value:
        magnitude = self.b.shl(self.b.and_(bits, self.constant(i32x16, 0x7FFF)), self.constant(i32x16, 13))
        value = self.b.bitcast(self.b.fmul(self.b.bitcast(magnitude, f32x16), self.constant(f32x16, 2.0**112)), i32x16)
        special = self.b.icmp_unsigned(">=", magnitude, self.constant(i32x16, 0x7C00 << 13))  # inf and NaN
        value = self.b.select(special, self.b.or_(value, self.constant(i32x16, 0x7F800000)), value)
        sign = self.b.shl(self.b.and_(bits, self.constant(i32x16, 0x8000)), self.constant(i32x16, 16))
        return self.b.bitcast(self.b.or_(value, sign), f32x16)

    def half_bits(self, value: Value) -> Value:
        """The float16 nearest to each float32 lane (ties to even), as integers of 16 bits; any number of lanes."""
        lanes = value.type.count
        if self.tier.half:
            return self.b.bitcast(self.b.fptrunc(value, ir.VectorType(ir.HalfType(), lanes)), ir.VectorType(i16, lanes))
        return self._half_bits_by_integers(value, ir.VectorType(i32, lanes))

    def _half_bits_by_integers(self, value: Value, kind: Any) -> Value:
        bits = self.b.bitcast(value, kind)
        magnitude = self.b.and_(bits, self.constant(kind, 0x7FFFFFFF))
        # normal: shift the exponent's bias from 127 to 15 and round by adding just under half, plus the last kept bit
        odd = self.b.and_(self.b.lshr(magnitude, self.constant(kind, 13)), self.constant(kind, 1))
        rounded = self.b.add(self.b.add(magnitude, odd), self.constant(kind, 0xFFF - (112 << 23)))
        result = self.b.lshr(rounded, self.constant(kind, 13))
        # below 2^-14: adding 0.5 lets the float unit round at the place where denormals end
        magic = self.constant(value.type, 0.5)
        tiny = self.b.bitcast(self.b.fadd(self.b.bitcast(magnitude, value.type), magic), kind)
        tiny = self.b.sub(tiny, self.constant(kind, 126 << 23))
        result = self.b.select(self.b.icmp_signed("<", magnitude, self.constant(kind, 113 << 23)), tiny, result)
        beyond = self.b.icmp_signed(">=", magnitude, self.constant(kind, 143 << 23))
        result = self.b.select(beyond, self.constant(kind, 0x7C00), result)
        is_nan = self.b.icmp_signed(">", magnitude, self.constant(kind, 0x7F800000))
        result = self.b.select(is_nan, self.constant(kind, 0x7E00), result)
        sign = self.b.and_(self.b.lshr(bits, self.constant(kind, 16)), self.constant(kind, 0x8000))
        return self.b.trunc(self.b.or_(result, sign), ir.VectorType(i16, kind.count))

    def load_bfloat(self, pointer: Value, offset: Value | int = 0) -> Value:
        """16 bfloat16 -> f32x16."""
        bits = self.b.zext(self.load(i16x16, pointer, offset), i32x16)
        return self.b.bitcast(self.b.shl(bits, self.constant(i32x16, 16)), f32x16)

    def bfloat_bits(self, value: Value) -> Value:
        """The bfloat16 nearest to each lane of f32x16 (ties to even), as integers of 16 bits. A NaN stays one."""
        bits = self.b.bitcast(value, i32x16)
        high = self.b.lshr(bits, self.constant(i32x16, 16))
        # just under half of the last kept bit, and what is missing to half where that bit is set
        half = self.b.add(self.constant(i32x16, 0x7FFF), self.b.and_(high, self.constant(i32x16, 1)))
        rounded = self.b.lshr(self.b.add(bits, half), self.constant(i32x16, 16))
        quiet = self.b.or_(high, self.constant(i32x16, 0x40))
        is_nan = self.b.fcmp_unordered("uno", value, value)
        return self.b.trunc(self.b.select(is_nan, quiet, rounded), i16x16)

    # -- control
    def loop(
        self, count: Value, carried: Sequence[Value], body: Callable[[Value, list[Value]], Sequence[Value]]
    ) -> list[Value]:
        """for i in range(count): carried = body(i, carried). Returns the last carried values."""
        before = self.b.block
        head, inside = self.b.append_basic_block("loop"), self.b.append_basic_block("body")
        after = self.b.append_basic_block("end")
        self.b.branch(head)
        self.b.position_at_end(head)
        index = self.b.phi(i64)
        index.add_incoming(self.const(0), before)
        phis = [self.b.phi(value.type) for value in carried]
        for phi, value in zip(phis, carried, strict=True):
            phi.add_incoming(value, before)
        self.b.cbranch(self.b.icmp_signed("<", index, count), inside, after)
        self.b.position_at_end(inside)
        results = body(index, list(phis))
        last = self.b.block
        index.add_incoming(self.b.add(index, self.const(1)), last)
        for phi, value in zip(phis, results, strict=True):
            phi.add_incoming(value, last)
        self.b.branch(head)
        self.b.position_at_end(after)
        return list(phis)

    # -- integer dot products
    def dot_u8s8(self, acc: Value, weights: Value, dword: Value) -> Value:
        """acc[lane] += sum of four products of unsigned weight bytes and the signed bytes of `dword` (an i32).

        Exact on every tier for weights up to 255 and |activation| <= 127.
        """
        weights, activations = self.b.bitcast(weights, i32x16), self.splat(dword)
        if self.tier.vnni == 512:
            return self.call("llvm.x86.avx512.vpdpbusd.512", i32x16, [acc, weights, activations])
        if self.tier.vnni == 256:
            parts = zip(*(self.halves(value) for value in (acc, weights, activations)), strict=True)
            return self.join([self.call("llvm.x86.avx512.vpdpbusd.256", part[0].type, part) for part in parts])
        return self._dot_by_bytes(acc, weights, activations)

    def _dot_by_bytes(self, acc: Value, weights: Value, activations: Value) -> Value:
        for byte in range(4):
            w = self.b.lshr(weights, self.constant(i32x16, 8 * byte))
            w = self.b.and_(w, self.constant(i32x16, 255))
            x = self.b.ashr(self.b.shl(activations, self.constant(i32x16, 24 - 8 * byte)), self.constant(i32x16, 24))
            acc = self.b.add(acc, self.b.mul(w, x))
        return acc

    def lookup(self, table: Sequence[int], codes: Value) -> Value:
        """Of 64 bytes below 16, the entry of a table of 16 bytes for each."""
        if self.tier.vnni == 512:
            entries = ir.Constant(i8x64, list(table) * 4)
            return self.call("llvm.x86.avx512.pshuf.b.512", i8x64, [entries, codes])
        if self.tier.avx2:
            entries = ir.Constant(ir.VectorType(i8, 32), list(table) * 2)
            halves = self.halves(codes)
            return self.join([self.call("llvm.x86.avx2.pshuf.b", half.type, [entries, half]) for half in halves])
        values = [self.constant(i8x64, entry) for entry in table]
        for bit in range(4):
            digit = self.b.and_(codes, self.constant(i8x64, 1 << bit))
            is_set = self.b.icmp_unsigned("!=", digit, self.zero(i8x64))
            values = [self.b.select(is_set, one, none) for none, one in zip(values[::2], values[1::2], strict=True)]
        return values[0]

    # -- elementary functions
    def exp(self, x: Value) -> Value:
        """e^x of f32x16 within 2 ulp: 2^n times a degree-6 polynomial on [-ln2/2, ln2/2]; 0 below -87, NaN of NaN."""
        low = self.b.fcmp_ordered("<", x, self.constant(f32x16, -87.0))
        x = self.clamp(x, self.constant(f32x16, -87.0), self.constant(f32x16, 88.0))
        n = self.round(self.b.fmul(x, self.constant(f32x16, 1.4426950408889634)))
        r = self.fma(n, self.constant(f32x16, -0.693359375), x)
        r = self.fma(n, self.constant(f32x16, 2.12194440e-4), r)
        y = self.constant(f32x16, 1.0 / 720.0)
        for coefficient in (1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0):
            y = self.fma(y, r, self.constant(f32x16, coefficient))
        exponent = self.b.add(self.b.fptosi(n, i32x16), self.constant(i32x16, 127))
        power = self.b.bitcast(self.b.shl(exponent, self.constant(i32x16, 23)), f32x16)
        return self.b.select(low, self.zero(), self.b.fmul(y, power))


def micro_kernel(result: Any = types.void, tier: Tier | None = None) -> Callable[[Callable[..., Value]], Any]:
    """Make an @intrinsic of `emit(e, *arguments)`; every argument is an int64 (address, count or stride) or float.

    tier: one of those that this CPU has; the best, if none is given.
    """

    def decorate(emit: Callable[..., Value]) -> Any:
        # numba reads the parameter list, so it must be spelled out: one wrapper per arity
        def build(*argument_types: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Value:
                value = emit(Emit(builder, tier), *arguments)
                return context.get_dummy_value() if result is types.void else value

            return result(*argument_types), codegen

        return intrinsic(_with_arity(build, emit.__code__.co_argcount - 1))

    return decorate


def _with_arity(build: Callable[..., Any], count: int) -> Any:
    wrappers: dict[int, Any] = {
        1: lambda typing, a: build(a),
        2: lambda typing, a, b: build(a, b),
        3: lambda typing, a, b, c: build(a, b, c),
        4: lambda typing, a, b, c, d: build(a, b, c, d),
        5: lambda typing, a, b, c, d, e: build(a, b, c, d, e),
        6: lambda typing, a, b, c, d, e, f: build(a, b, c, d, e, f),
        7: lambda typing, a, b, c, d, e, f, g: build(a, b, c, d, e, f, g),
        8: lambda typing, a, b, c, d, e, f, g, h: build(a, b, c, d, e, f, g, h),
        9: lambda typing, a, b, c, d, e, f, g, h, i: build(a, b, c, d, e, f, g, h, i),
    }
    return wrappers[count]
