"""The one way to compile a kernel: nogil, cached in a folder that is keyed by everything the code depends on."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite
import numba
from numba.core import config, types
from numba.extending import intrinsic as _intrinsic

from .features import target_features
from .folders import cache_root

F = TypeVar("F", bound=Callable[..., Any])


def cache_folder() -> Path:
    """Where compiled kernels lie: one folder per version of the sources, of the compiler and of the CPU features.

    Numba's own key sees only the file that defines a function, not the intrinsics that it calls from other files.
    """
    key = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__} {sorted(target_features())}".encode())
    for source in sorted(Path(__file__).parent.rglob("*.py")):
        key.update(source.read_bytes())
    return cache_root() / "kernels" / key.hexdigest()[:16]


# Numba looks at this when a function is decorated, and knows no folder for one function alone.
if not config.CACHE_DIR:
    config.CACHE_DIR = str(cache_folder())


def kernel(function: F) -> F:
    """Compile `function` for arrays and scalars: no GIL, cached. Arithmetic stays strict; reductions are explicit."""
    return cast(F, numba.njit(nogil=True, cache=True, error_model="numpy")(function))


def passing_kernel(function: F) -> F:
    """As `kernel` for a function that is made while the program runs, which no cache can tell from its like."""
    return cast(F, numba.njit(nogil=True, error_model="numpy")(function))


def intrinsic(function: Callable[..., Any]) -> Any:
    """An instruction of our own: `function(typing_context, *types)` returns (signature, code generator)."""
    return _intrinsic(function)


INDICES = types.Array(types.int64, 1, "C")
OP_SIGNATURE = (INDICES, INDICES, types.int64)
PRODUCT_SIGNATURE = (types.int64,) * 6
READER_SIGNATURE = (types.int64,) * 4


def address_of(function: Any, signature: tuple[Any, ...]) -> int:
    """Compile a kernel for `signature` and give its address, for a caller made by `indirect`.

    A call by address keeps each kernel a compilation of its own: a direct call would compile the callee again and
    again, in every caller.
    """
    function.compile(signature)
    compiled = function.overloads[signature]
    address: int = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
    return address


def _call(signature: tuple[Any, ...]) -> Any:
    """The code generator of a call by address; the callee returns nothing."""

    def codegen(context: Any, builder: Any, _: Any, args: Any) -> Any:
        kind = context.call_conv.get_function_type(types.none, signature)
        callee = builder.inttoptr(args[0], kind.as_pointer())
        context.call_conv.call_function(builder, callee, types.none, signature, args[1:])
        return context.get_dummy_value()

    return types.void(types.int64, *signature), codegen


@intrinsic
def call_op(typingctx: Any, address: Any, d: Any, step: Any, worker: Any) -> Any:
    """Call the op at `address` (see `address_of` with OP_SIGNATURE)."""
    return _call(OP_SIGNATURE)


@intrinsic
def call_product(typingctx: Any, address: Any, count: Any, w: Any, spans: Any, rows: Any, out: Any, stride: Any) -> Any:
    """Call the tile product at `address` (see `address_of` with PRODUCT_SIGNATURE)."""
    return _call(PRODUCT_SIGNATURE)


@intrinsic
def call_reader(typingctx: Any, address: Any, tile: Any, lane: Any, spans: Any, out: Any) -> Any:
    """Call the row reader at `address` (see `address_of` with READER_SIGNATURE)."""
    return _call(READER_SIGNATURE)
