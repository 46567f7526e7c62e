"""Waiting without spinning, from inside nogil code: Linux futexes by the C library's `syscall`."""

import platform
from typing import Any

from numba import types

from .jit import kernel

_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 202)
_WAIT_PRIVATE, _WAKE_PRIVATE = 128, 129
_syscall: Any = types.ExternalFunction("syscall", types.int64(*[types.int64] * 7))


@kernel
def futex_wait(address: int, seen: int) -> None:
    """Sleep until woken, unless the low 32 bits at `address` already differ from those of `seen`."""
    _syscall(_FUTEX, address, _WAIT_PRIVATE, seen & 0xFFFFFFFF, 0, 0, 0)


@kernel
def futex_wake(address: int) -> None:
    """Wake all that sleep on `address`."""
    _syscall(_FUTEX, address, _WAKE_PRIVATE, 0x7FFFFFFF, 0, 0, 0)
