"""The thread team: one persistent thread per core that runs programs with the GIL released.

The caller of `run` is worker 0. The others wait for the next run: spinning for about 0.1 ms, then asleep in the kernel,
so an idle team uses no CPU. All state that threads share is in one int64 array, a cache line per counter.
"""

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
from numba import carray, types
from numpy.typing import NDArray

from .descriptor import WIDTH
from .jit import intrinsic, kernel
from .memory import atomic_load
from .program import FrozenProgram, advance, execute, wait_until

_GENERATION, _ARRIVED, _SLEEPERS, _STOP, _ROWS, _NUM_ROWS, _STEP, _STEP_SIZE = (8 * i for i in range(8))


@intrinsic
def _as_pointer(typingctx: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.int64)(types.int64), codegen


@kernel
def _serve(control: Any, worker: int, workers: int) -> None:
    """A worker's life: wait for a generation, run its program, until told to stop."""
    base = control.ctypes.data
    generation = 0
    meetings = 0
    while True:
        generation += 1
        wait_until(base + 8 * _GENERATION, generation, base + 8 * _SLEEPERS)
        if atomic_load(base + 8 * _STOP):
            return
        rows = carray(_as_pointer(control[_ROWS]), (control[_NUM_ROWS], WIDTH))
        step = carray(_as_pointer(control[_STEP]), (control[_STEP_SIZE],))
        meetings = execute(rows, step, worker, workers, base + 8 * _ARRIVED, base + 8 * _SLEEPERS, meetings)


@kernel
def _lead(control: Any, rows: Any, counters: Any, step: Any, workers: int, meetings: int) -> int:
    """Worker 0's share of one run: publish the program, release the others, take part."""
    base = control.ctypes.data
    counters[:] = 0
    control[_ROWS], control[_NUM_ROWS] = rows.ctypes.data, rows.shape[0]
    control[_STEP], control[_STEP_SIZE] = step.ctypes.data, step.shape[0]
    if workers > 1:
        advance(base + 8 * _GENERATION, base + 8 * _SLEEPERS)
    return execute(rows, step, 0, workers, base + 8 * _ARRIVED, base + 8 * _SLEEPERS, meetings)


@kernel
def _release(control: Any) -> None:
    advance(control.ctypes.data + 8 * _GENERATION, control.ctypes.data + 8 * _SLEEPERS)


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
        self._control = np.zeros(64, np.int64)
        self._meetings = 0
        self._closed = False
        self._warm_up()
        self._workers = [
            threading.Thread(target=_serve, args=(self._control, i, threads), name=f"isotherm-cpu-{i}", daemon=True)
            for i in range(1, threads)
        ]
        for worker in self._workers:
            worker.start()

    def _warm_up(self) -> None:
        """Compile everything on this thread: workers that compile would wait for one another's locks."""
        nothing = np.zeros((0, WIDTH), np.int64)
        _lead(np.zeros(64, np.int64), nothing, np.zeros(0, np.int64), np.zeros(1, np.int64), 1, 0)
        stopped = np.zeros(64, np.int64)
        stopped[[_STOP, _GENERATION]] = 1
        _serve(stopped, 1, 2)
        _release(stopped)

    def run(self, program: FrozenProgram, step: NDArray[np.int64]) -> None:
        """Run `program` once on all workers; returns when every op is done."""
        if self._closed:
            raise RuntimeError("the thread team is closed")
        self._meetings = _lead(self._control, program.rows, program.counters, step, self.threads, self._meetings)

    def close(self) -> None:
        """Stop and join the workers."""
        if not self._closed:
            self._closed = True
            self._control[_STOP] = 1
            _release(self._control)
            for worker in self._workers:
                worker.join()
