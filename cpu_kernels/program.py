"""A recorded program: rows of descriptors that a team of workers runs from start to end without Python.

`OPS` is the op set. `Program.add` appends one row; `execute` is what each worker runs: op after op, meeting the others at
a barrier where the row says so. Work inside an op is claimed through the row's counter.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .attention import FIELDS as ATTENTION_FIELDS
from .attention import attention
from .combine import FIELDS as COMBINE_FIELDS
from .combine import combine
from .descriptor import BARRIER, COUNTER, OPCODE, WIDTH, bits_of
from .futex import futex_wait, futex_wake
from .jit import kernel
from .matmul import EMBED_FIELDS, EXPERT_FIELDS, LINEAR_FIELDS, embed, expert_down, expert_gate_up, linear
from .memory import atomic_add, atomic_load, pause
from .norm import QUANTISE_FIELDS, RMS_NORM_FIELDS, quantise, rms_norm
from .rope import FIELDS as ROPE_FIELDS
from .rope import rope_store
from .routing import GROUP_FIELDS, ROUTE_FIELDS, group, route

_EMBED, _RMS_NORM, _QUANTISE, _LINEAR, _ROPE, _ATTENTION, _ROUTE, _GROUP, _GATE_UP, _DOWN, _COMBINE = range(11)


@dataclass(frozen=True, slots=True)
class Op:
    """An op's number, and the names of its fields in row order."""

    code: int
    fields: tuple[str, ...]


OPS = {
    "embed": Op(_EMBED, EMBED_FIELDS),
    "rms_norm": Op(_RMS_NORM, RMS_NORM_FIELDS),
    "quantise": Op(_QUANTISE, QUANTISE_FIELDS),
    "linear": Op(_LINEAR, LINEAR_FIELDS),
    "rope_store": Op(_ROPE, ROPE_FIELDS),
    "attention": Op(_ATTENTION, ATTENTION_FIELDS),
    "route": Op(_ROUTE, ROUTE_FIELDS),
    "group": Op(_GROUP, GROUP_FIELDS),
    "expert_gate_up": Op(_GATE_UP, EXPERT_FIELDS),
    "expert_down": Op(_DOWN, EXPERT_FIELDS),
    "combine": Op(_COMBINE, COMBINE_FIELDS),
}

_COUNTER_STRIDE = 8  # int64 per counter: one cache line each


class Program:
    """Rows under construction; `freeze` gives the arrays that a Team runs."""

    def __init__(self) -> None:
        self._rows: list[list[int]] = []

    def add(self, op: str, *, barrier: bool = True, **fields: int | float) -> None:
        """Append an op. A float field is stored by its float64 bits; every field must be given."""
        known = OPS[op]
        if set(fields) != set(known.fields):
            raise ValueError(f"{op} takes {known.fields}, not {tuple(fields)}")
        values = [bits_of(v) if isinstance(v, float) else int(v) for v in (fields[name] for name in known.fields)]
        self._rows.append([known.code, int(barrier), 0, *values])

    def meet(self) -> None:
        """Make all workers meet after the last op added."""
        self._rows[-1][BARRIER] = 1

    def freeze(self) -> "FrozenProgram":
        rows = np.zeros((len(self._rows), WIDTH), np.int64)
        counters = np.zeros(len(self._rows) * _COUNTER_STRIDE, np.int64)
        for i, row in enumerate(self._rows):
            rows[i, : len(row)] = row
            rows[i, COUNTER] = counters.ctypes.data + i * _COUNTER_STRIDE * 8
        rows[-1:, BARRIER] = 1  # nobody leaves before the last op is done
        return FrozenProgram(rows, counters)


@dataclass(frozen=True, slots=True)
class FrozenProgram:
    """rows: int64 [ops, WIDTH]; counters: zeroed before each run, one per op."""

    rows: NDArray[np.int64]
    counters: NDArray[np.int64]


_SPINS = 4000  # about 0.1 ms of `pause`


@kernel
def wait_until(address, target, sleepers):  # type: ignore[no-untyped-def]
    """Wait for the counter at `address` to reach `target`: spin for a while, then sleep."""
    for _ in range(_SPINS):
        if atomic_load(address) >= target:
            return
        pause()
    while True:
        seen = atomic_load(address)
        if seen >= target:
            return
        atomic_add(sleepers, 1)
        futex_wait(address, seen)
        atomic_add(sleepers, -1)


@kernel
def advance(address, sleepers):  # type: ignore[no-untyped-def]
    """Add one to the counter at `address` and wake who sleeps on it."""
    atomic_add(address, 1)
    if atomic_load(sleepers) > 0:
        futex_wake(address)


@kernel
def _dispatch(code, d, step, worker):  # type: ignore[no-untyped-def]
    if code == _EMBED:
        embed(d, step, worker)
    elif code == _RMS_NORM:
        rms_norm(d, step, worker)
    elif code == _QUANTISE:
        quantise(d, step, worker)
    elif code == _LINEAR:
        linear(d, step, worker)
    elif code == _ROPE:
        rope_store(d, step, worker)
    elif code == _ATTENTION:
        attention(d, step, worker)
    elif code == _ROUTE:
        route(d, step, worker)
    elif code == _GROUP:
        group(d, step, worker)
    elif code == _GATE_UP:
        expert_gate_up(d, step, worker)
    elif code == _DOWN:
        expert_down(d, step, worker)
    else:
        combine(d, step, worker)


@kernel
def execute(rows, step, worker, workers, arrived, sleepers, meetings):  # type: ignore[no-untyped-def]
    """Run all rows as one of `workers`. `meetings`: barriers passed so far; returns the count after."""
    for i in range(rows.shape[0]):
        d = rows[i]
        _dispatch(d[OPCODE], d, step, worker)
        if d[BARRIER]:
            meetings += 1
            advance(arrived, sleepers)
            wait_until(arrived, meetings * workers, sleepers)
    return meetings
