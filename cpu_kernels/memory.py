"""Scalars and atomics at raw addresses, for kernels that work on int64 descriptors."""

from typing import Any

from llvmlite import ir
from numba import types

from .jit import intrinsic, kernel
from .simd import Emit, f32, f64, i8, i16, i32, i64

# name -> (Numba type, LLVM type, alignment in bytes); the unsigned ones read a file's bytes, at any address
_SCALARS = {
    "f32": (types.float32, f32, 4),
    "i32": (types.int32, i32, 4),
    "i64": (types.int64, i64, 8),
    "u8": (types.uint8, i8, 1),
    "u16": (types.uint16, i16, 1),
    "u32": (types.uint32, i32, 1),
    "u64": (types.uint64, i64, 1),
}


def _reader(name: str) -> Any:
    numba_type, llvm_type, align = _SCALARS[name]

    @intrinsic
    def read(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            e = Emit(builder)
            return e.load(llvm_type, e.pointer(args[0]), 0, align)

        return numba_type(types.int64), codegen

    return read


def _writer(name: str) -> Any:
    numba_type, _, align = _SCALARS[name]

    @intrinsic
    def write(typingctx: Any, address: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            e = Emit(builder)
            e.store(args[1], e.pointer(args[0]), 0, align)
            return context.get_dummy_value()

        return types.void(types.int64, numba_type), codegen

    return write


read_f32, read_i64 = _reader("f32"), _reader("i64")
read_u8, read_u16, read_u32, read_u64 = _reader("u8"), _reader("u16"), _reader("u32"), _reader("u64")
write_f32, write_i32, write_i64 = _writer("f32"), _writer("i32"), _writer("i64")
write_u8, write_u16, write_u32 = _writer("u8"), _writer("u16"), _writer("u32")


@kernel
def row_number(rows: int, index: int) -> int:
    """The number at `index` of int64 `rows`; the index itself where there is no list (address 0)."""
    number: int = index if rows == 0 else read_i64(rows + 8 * index)
    return number


@intrinsic
def float_from_bits(typingctx: Any, bits: Any) -> Any:
    """The float64 whose bits an int64 descriptor field holds (see `descriptor.bits_of`)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], f64)

    return types.float64(types.int64), codegen


@intrinsic
def atomic_add(typingctx: Any, address: Any, value: Any) -> Any:
    """Add to the int64 at `address`; the value before.

    Sequentially consistent, as `atomic_load` is: a waker must see the sleeper that its change did not stop.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], i64.as_pointer())
        return builder.atomic_rmw("add", pointer, args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def atomic_load(typingctx: Any, address: Any) -> Any:
    """The int64 at `address`, with everything written before it was stored."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(args[0], i64.as_pointer()), "seq_cst", 8)

    return types.int64(types.int64), codegen


@intrinsic
def atomic_store(typingctx: Any, address: Any, value: Any) -> Any:
    """Publish an int64 and everything written before it."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], builder.inttoptr(args[0], i64.as_pointer()), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def atomic_swap_if(typingctx: Any, address: Any, expected: Any, value: Any) -> Any:
    """Store `value` if the int64 at `address` is `expected`; whether it was."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], i64.as_pointer())
        result = builder.cmpxchg(pointer, args[1], args[2], "acq_rel", "acquire")
        return builder.extract_value(result, 1)

    return types.boolean(types.int64, types.int64, types.int64), codegen


@intrinsic
def pause(typingctx: Any) -> Any:
    """Tell the core that this is a spin loop (nothing where there is no such instruction)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if builder.module.triple.startswith(("x86_64", "i686")) or not builder.module.triple:
            Emit(builder).call("llvm.x86.sse2.pause", ir.VoidType(), [])
        return context.get_dummy_value()

    return types.void(), codegen
