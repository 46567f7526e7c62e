"""The thread team: one persistent thread per core that runs programs with the GIL released.

The caller of `run` is worker 0. The others wait for the next run: spinning for about 0.1 ms, then asleep in the kernel,
so an idle team uses no CPU. Threads are not pinned. A run waits only for workers that joined it: one that wakes late
finds it over and is not missed.
All state that threads share is in one int64 array, a cache line per counter.
"""

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
from numba import carray, types
from numpy.typing import NDArray

from .descriptor import WIDTH
from .futex import SPINS, add_and_wake, sleep_on
from .jit import intrinsic, kernel
from .memory import atomic_add, atomic_load, atomic_store, atomic_swap_if, pause
from .program import FrozenProgram, execute

_GENERATION, _JOINED, _LEFT, _SLEEPERS, _STOP, _ROWS, _NUM_ROWS, _STEP, _STEP_SIZE = (8 * i for i in range(9))
_CONTROL_WORDS = 8 * 9
# the word at _JOINED: generation of the run, whether it is closed, how many workers joined
_GENERATION_SHIFT, _CLOSED = 16, 1 << 15
_COUNT = _CLOSED - 1


@intrinsic
def _as_pointer(typingctx: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.int64)(types.int64), codegen


@kernel
def _wait_above(address: int, value: int, sleepers: int) -> int:
    """Wait until the counter at `address` exceeds `value`: spin for a while, then sleep. Returns the counter."""
    for _ in range(SPINS):
        seen: int = atomic_load(address)
        if seen > value:
            return seen
        pause()
    while True:
        seen = atomic_load(address)
        if seen > value:
            return seen
        sleep_on(address, seen, sleepers)


@kernel
def _join(address: int, generation: int) -> bool:
    """Join the run of `generation`, unless it is over: the leader then no longer waits for this worker."""
    while True:
        word = atomic_load(address)
        if word >> _GENERATION_SHIFT != generation or word & _CLOSED:
            return False
        if atomic_swap_if(address, word, word + 1):
            return True


@kernel
def _serve(control: Any, worker: int) -> None:
    """A worker's life: wait for a run, join it if it is still open, until told to stop."""
    base = control.ctypes.data
    sleepers = base + 8 * _SLEEPERS
    generation = 0
    while True:
        generation = _wait_above(base + 8 * _GENERATION, generation, sleepers)
        if atomic_load(base + 8 * _STOP):
            return
        if _join(base + 8 * _JOINED, generation):
            rows = carray(_as_pointer(control[_ROWS]), (control[_NUM_ROWS], WIDTH))
            step = carray(_as_pointer(control[_STEP]), (control[_STEP_SIZE],))
            execute(rows, step, worker, sleepers)
            add_and_wake(base + 8 * _LEFT, 1, sleepers)


@kernel
def _lead(control: Any, rows: Any, counters: Any, step: Any) -> None:
    """Worker 0's share of one run: publish the program, take part, then wait for those that joined."""
    base = control.ctypes.data
    sleepers = base + 8 * _SLEEPERS
    counters[:] = 0
    control[_ROWS], control[_NUM_ROWS] = rows.ctypes.data, rows.shape[0]
    control[_STEP], control[_STEP_SIZE] = step.ctypes.data, step.shape[0]
    left = atomic_load(base + 8 * _LEFT)
    generation = atomic_load(base + 8 * _GENERATION) + 1
    atomic_store(base + 8 * _JOINED, generation << _GENERATION_SHIFT)
    add_and_wake(base + 8 * _GENERATION, 1, sleepers)
    execute(rows, step, 0, sleepers)
    joined = atomic_add(base + 8 * _JOINED, _CLOSED) & _COUNT
    if joined:
        _wait_above(base + 8 * _LEFT, left + joined - 1, sleepers)


@kernel
def _release(control: Any) -> None:
    """Let the workers look at the stop flag."""
    add_and_wake(control.ctypes.data + 8 * _GENERATION, 1, control.ctypes.data + 8 * _SLEEPERS)


def physical_cores() -> list[int]:
    """One CPU number per physical core, of those this process may use."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    seen: set[str] = set()
    cores = []
    for cpu in allowed:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        key = siblings.read_text() if siblings.exists() else str(cpu)
        if key not in seen:
            seen.add(key)
            cores.append(cpu)
    return cores


class Team:
    """`threads` workers, the caller of `run` included. Not reentrant: one thread calls `run` at a time."""

    def __init__(self, threads: int) -> None:
        if threads < 1:
            raise ValueError(f"a team needs at least 1 thread, not {threads}")
        self.threads = threads
        self._control = np.zeros(_CONTROL_WORDS, np.int64)
        self._closed = False
        self._warm_up()
        self._workers = [
            threading.Thread(target=_serve, args=(self._control, i), name=f"isotherm-cpu-{i}", daemon=True)
            for i in range(1, threads)
        ]
        for worker in self._workers:
            worker.start()

    def _warm_up(self) -> None:
        """Compile everything on this thread: workers that compile would wait for one another's locks."""
        control = np.zeros(_CONTROL_WORDS, np.int64)
        _lead(control, np.zeros((0, WIDTH), np.int64), np.zeros(0, np.int64), np.zeros(1, np.int64))
        control[_STOP] = 1
        _serve(control, 1)
        _release(control)

    def run(self, program: FrozenProgram, step: NDArray[np.int64]) -> None:
        """Run `program` once on all workers; returns when every op is done."""
        if self._closed:
            raise RuntimeError("the thread team is closed")
        _lead(self._control, program.rows, program.counters, step)

    def close(self) -> None:
        """Stop and join the workers."""
        if not self._closed:
            self._closed = True
            self._control[_STOP] = 1
            _release(self._control)
            for worker in self._workers:
                worker.join()
