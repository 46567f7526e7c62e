"""The thread team: one persistent thread per core that runs programs with the GIL released.

The caller of `run` is worker 0. The others wait for the next run: spinning for about 0.1 ms, then asleep in the kernel,
so an idle team uses no CPU. A run waits only for workers that joined it: one that wakes late finds it over and is not
missed. `seating` says what threads are bound to; each walks the copy of the program that begins with its node's work.
All state that threads share is in one int64 array, a cache line per counter.
"""

import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import carray, types
from numpy.typing import NDArray

from .claim import run_bits
from .descriptor import RUN_BITS, WIDTH, WORKERS
from .futex import SPINS, add_and_wake, sleep_on
from .jit import intrinsic, kernel
from .memory import atomic_add, atomic_load, atomic_store, atomic_swap_if, pause
from .program import FrozenProgram, execute
from .seating import Seat, Seating, bind

_GENERATION, _JOINED, _LEFT, _SLEEPERS, _STOP, _ROWS, _COPIES, _NUM_ROWS, _STEP, _STEP_SIZE = (8 * i for i in range(10))
_CONTROL_WORDS = 8 * 10
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
def _serve(control: Any, worker: int, node: int) -> None:
    """A worker's life: wait for a run, join it if it is still open, until told to stop."""
    base = control.ctypes.data
    sleepers = base + 8 * _SLEEPERS
    generation = 0
    while True:
        generation = _wait_above(base + 8 * _GENERATION, generation, sleepers)
        if atomic_load(base + 8 * _STOP):
            return
        if _join(base + 8 * _JOINED, generation):
            copy = control[_ROWS] + node % control[_COPIES] * control[_NUM_ROWS] * WIDTH * 8
            rows = carray(_as_pointer(copy), (control[_NUM_ROWS], WIDTH))
            step = carray(_as_pointer(control[_STEP]), (control[_STEP_SIZE],))
            execute(rows, step, worker, sleepers)
            add_and_wake(base + 8 * _LEFT, 1, sleepers)


@kernel
def _lead(control: Any, rows: Any, counters: Any, step: Any) -> None:
    """Worker 0's share of one run: publish the program, take part, then wait for those that joined.

    rows: int64 [copies, ops, WIDTH], the copy of each node; worker 0 sits at node 0.
    """
    base = control.ctypes.data
    sleepers = base + 8 * _SLEEPERS
    counters[:] = 0
    control[_ROWS], control[_COPIES], control[_NUM_ROWS] = rows.ctypes.data, rows.shape[0], rows.shape[1]
    control[_STEP], control[_STEP_SIZE] = step.ctypes.data, step.shape[0]
    left = atomic_load(base + 8 * _LEFT)
    generation = atomic_load(base + 8 * _GENERATION) + 1
    atomic_store(base + 8 * _JOINED, generation << _GENERATION_SHIFT)
    add_and_wake(base + 8 * _GENERATION, 1, sleepers)
    execute(rows[0], step, 0, sleepers)
    joined = atomic_add(base + 8 * _JOINED, _CLOSED) & _COUNT
    if joined:
        _wait_above(base + 8 * _LEFT, left + joined - 1, sleepers)


@kernel
def _release(control: Any) -> None:
    """Let the workers look at the stop flag."""
    add_and_wake(control.ctypes.data + 8 * _GENERATION, 1, control.ctypes.data + 8 * _SLEEPERS)


@dataclass(frozen=True, slots=True)
class _Leader:
    """The thread that was bound by calling `run`, and the CPUs that it had before."""

    thread: threading.Thread
    cpus: frozenset[int] | None


class Team:
    """`threads` workers, or those of a seating, the caller of `run` included. One thread calls `run` at a time.

    Where the seating binds workers, `run` binds its caller too, until another thread calls it or the team is closed.
    """

    def __init__(self, threads: int | Seating) -> None:
        self._seating = Seating.of(threads)
        self.threads = self._seating.threads
        if self.threads < 1:
            raise ValueError(f"a team needs at least 1 thread, not {threads}")
        self._run_bits = run_bits(self.threads)
        self._seats = self._seating.seats
        self._leader: _Leader | None = None
        self._control = np.zeros(_CONTROL_WORDS, np.int64)
        self._closed = False
        self._warm_up()
        self._workers = [
            threading.Thread(target=self._work, args=(i, seat), name=f"isotherm-cpu-{i}", daemon=True)
            for i, seat in enumerate(self._seats[1:], 1)
        ]
        for worker in self._workers:
            worker.start()

    def _warm_up(self) -> None:
        """Compile everything on this thread: workers that compile would wait for one another's locks."""
        control = np.zeros(_CONTROL_WORDS, np.int64)
        _lead(control, np.zeros((1, 0, WIDTH), np.int64), np.zeros(0, np.int64), np.zeros(1, np.int64))
        control[_STOP] = 1
        _serve(control, 1, 0)
        _release(control)

    def _work(self, worker: int, seat: Seat) -> None:
        self._seating.take(seat)
        _serve(self._control, worker, seat.node)

    def _seat_leader(self) -> None:
        """Bind the calling thread, if it is not yet; the one before it gets back what it had."""
        if self._leader and self._leader.thread.ident == threading.get_ident():
            return
        self._free_leader()
        cpus = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
        self._leader = _Leader(threading.current_thread(), cpus)
        self._seating.take(self._seats[0])

    def _free_leader(self) -> None:
        leader, self._leader = self._leader, None
        if leader and leader.cpus and leader.thread.is_alive() and leader.thread.native_id:
            with suppress(ProcessLookupError):  # it has ended just now
                bind(leader.cpus, leader.thread.native_id)

    def run(self, program: FrozenProgram, step: NDArray[np.int64]) -> None:
        """Run `program` once on all workers; returns when every op is done."""
        if self._closed:
            raise RuntimeError("the thread team is closed")
        if self._seats[0].cpus is not None:
            self._seat_leader()
        step[WORKERS], step[RUN_BITS] = self.threads, self._run_bits
        _lead(self._control, program.rows, program.counters, step)

    def close(self) -> None:
        """Stop and join the workers."""
        if not self._closed:
            self._closed = True
            self._control[_STOP] = 1
            _release(self._control)
            for worker in self._workers:
                worker.join()
            self._free_leader()
