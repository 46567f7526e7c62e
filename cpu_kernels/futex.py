"""Waiting for a counter from inside nogil code: spinning for a while, then asleep in a Linux futex.

Who sleeps counts itself in `sleepers` first, so that a change of the counter costs no system call where nobody does.
"""

import platform
from typing import Any

from numba import types

from .jit import kernel
from .memory import atomic_add, atomic_load

SPINS = 4000  # looks at a counter before sleeping: about 0.1 ms of `pause`
_FUTEX = 202 if platform.machine() == "x86_64" else 98  # 98 on all newer architectures
_WAIT_PRIVATE, _WAKE_PRIVATE = 128, 129
_syscall: Any = types.ExternalFunction("syscall", types.int64(*[types.int64] * 7))


@kernel
def sleep_on(address: int, seen: int, sleepers: int) -> None:
    """Sleep until woken, unless the low 32 bits of the counter at `address` already differ from those of `seen`."""
    atomic_add(sleepers, 1)
    _syscall(_FUTEX, address, _WAIT_PRIVATE, seen & 0xFFFFFFFF, 0, 0, 0)
    atomic_add(sleepers, -1)


@kernel
def add_and_wake(address: int, amount: int, sleepers: int) -> None:
    """Add to the counter at `address` and wake all that sleep on it."""
    atomic_add(address, amount)
    if atomic_load(sleepers) > 0:
        _syscall(_FUTEX, address, _WAKE_PRIVATE, 0x7FFFFFFF, 0, 0, 0)
