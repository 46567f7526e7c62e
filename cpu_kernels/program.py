"""A recorded program: rows of descriptors that a team of workers runs from start to end without Python.

`OPS` is the op set. `Program.add` appends one row; `execute` is what each worker runs: op after op by the address in
its row, waiting for the others' work where the row says so. Work inside an op is claimed through the row's counters.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .attention import FIELDS as ATTENTION_FIELDS
from .attention import attention
from .combine import FIELDS as COMBINE_FIELDS
from .combine import combine
from .descriptor import BARRIER, COUNTER, ENTRY, WIDTH, bits_of
from .down import FIELDS as DOWN_FIELDS
from .down import expert_down
from .futex import SPINS, add_and_wake, sleep_on
from .jit import OP_SIGNATURE, address_of, call_op, kernel
from .matmul import EMBED_FIELDS, EXPERT_FIELDS, LINEAR_FIELDS, embed, expert_gate_up, linear
from .memory import atomic_add, atomic_load, pause
from .norm import QUANTISE_FIELDS, RMS_NORM_FIELDS, quantise, rms_norm, round_rows
from .rope import FIELDS as ROPE_FIELDS
from .rope import rope_store
from .routing import GROUP_FIELDS, ROUTE_FIELDS, group, route


@dataclass(frozen=True, slots=True)
class Op:
    """An op's kernel, and the names of its fields in row order."""

    kernel: Any
    fields: tuple[str, ...]


OPS = {
    "embed": Op(embed, EMBED_FIELDS),
    "rms_norm": Op(rms_norm, RMS_NORM_FIELDS),
    "quantise": Op(quantise, QUANTISE_FIELDS),
    "round_rows": Op(round_rows, QUANTISE_FIELDS),
    "linear": Op(linear, LINEAR_FIELDS),
    "rope_store": Op(rope_store, ROPE_FIELDS),
    "attention": Op(attention, ATTENTION_FIELDS),
    "route": Op(route, ROUTE_FIELDS),
    "group": Op(group, GROUP_FIELDS),
    "expert_gate_up": Op(expert_gate_up, EXPERT_FIELDS),
    "expert_down": Op(expert_down, DOWN_FIELDS),
    "combine": Op(combine, COMBINE_FIELDS),
}

_COUNTER_STRIDE = 16  # int64 per op: a cache line for what is claimed, one for who is there


class Program:
    """Rows under construction; `freeze` gives the arrays that a Team runs."""

    def __init__(self) -> None:
        self._rows: list[list[int]] = []
        self._nodes: list[int] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, op: str, *, node: int = 0, **fields: int | float) -> None:
        """Append an op, compiling its kernel on first use. Every field must be given; floats go by their bits.

        node: the memory node where the op's weights lie. Its workers come to the op before the others do.
        """
        known = OPS[op]
        if set(fields) != set(known.fields):
            raise ValueError(f"{op} takes {known.fields}, not {tuple(fields)}")
        values = [bits_of(v) if isinstance(v, float) else int(v) for v in (fields[name] for name in known.fields)]
        self._rows.append([address_of(known.kernel, OP_SIGNATURE), 0, 0, *values])
        self._nodes.append(node)

    def meet(self) -> None:
        """Let workers wait after the last op added until it is over: what follows reads what it wrote."""
        for row in self._rows[-1:]:
            row[BARRIER] = 1

    def freeze(self) -> "FrozenProgram":
        rows = np.zeros((len(self._rows), WIDTH), np.int64)
        counters = np.zeros(len(self._rows) * _COUNTER_STRIDE, np.int64)
        for i, row in enumerate(self._rows):
            rows[i, : len(row)] = row
            rows[i, COUNTER] = counters.ctypes.data + i * _COUNTER_STRIDE * 8
        rows[-1:, BARRIER] = 1
        copies = [rows[self._order(node)] for node in range(1 + max(self._nodes, default=0))]
        for copy in copies:
            copy[:, BARRIER] = rows[:, BARRIER]  # after the last op of those that run side by side, whichever it is
        return FrozenProgram(np.stack(copies), counters)

    def _order(self, node: int) -> list[int]:
        """The ops as a node's workers come to them: of those that run side by side its own first."""
        order: list[int] = []
        start, count = 0, 1 + max(self._nodes, default=0)
        for i, row in enumerate(self._rows):
            if row[BARRIER] or i == len(self._rows) - 1:
                order += sorted(range(start, i + 1), key=lambda op: (self._nodes[op] - node) % count)
                start = i + 1
        return order


@dataclass(frozen=True, slots=True)
class FrozenProgram:
    """rows: int64 [nodes, ops, WIDTH], a copy for the workers of each memory node; counters: zeroed before each run,
    two cache lines per op. Copies share the counters, so a node whose own work is claimed takes that of the others.

    Rows hold addresses: what they point to must outlive the program, which keeps only its own arrays.
    """

    rows: NDArray[np.int64]
    counters: NDArray[np.int64]


_MEETING = 64  # bytes from an op's work counters to that of the workers that left it, and that entered it
_LEFT, _ENTERED = 1, 1 << 32  # one of each; sleepers watch the low half, which changes whenever an op can be over
_LEFT_MASK = _ENTERED - 1


@kernel
def _is_done(word: int) -> bool:
    """All that entered have left, and one has: so no work was left to claim."""
    left = word & _LEFT_MASK
    return left > 0 and left == word >> 32


@kernel
def _wait_done(address: int, sleepers: int) -> None:
    for _ in range(SPINS):
        if _is_done(atomic_load(address)):
            return
        pause()
    while True:
        word = atomic_load(address)
        if _is_done(word):
            return
        sleep_on(address, word, sleepers)


@kernel
def execute(rows: Any, step: Any, worker: int, sleepers: int) -> None:
    """Run all rows as one worker of a team.

    An op is over when its work is claimed and all that entered it have left. So nobody waits for a worker that the
    system has put aside: it finds the ops over, passes them by, and catches up.
    """
    first = 0
    for i in range(rows.shape[0]):
        d = rows[i]
        meeting = d[COUNTER] + _MEETING
        # entering first and looking then: what the op reads cannot change before this worker leaves
        if atomic_add(meeting, _ENTERED) & _LEFT_MASK == 0:
            call_op(d[ENTRY], d, step, worker)
        add_and_wake(meeting, _LEFT, sleepers)
        if d[BARRIER]:
            for row in range(first, i + 1):
                _wait_done(rows[row, COUNTER] + _MEETING, sleepers)
            first = i + 1
