"""Where the workers of a team live: how many there are, at which memory nodes, and what CPUs they are bound to."""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from .topology import UNKNOWN, Topology

Affinity = Literal["none", "cores"]
Note = Callable[[str, str], None]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Seat:
    """A worker's memory node, and the CPUs that it is bound to; None where it may run anywhere."""

    node: int = 0
    cpus: frozenset[int] | None = None


def _log(name: str, detail: str) -> None:
    logger.warning("%s: %s", name, detail)


@dataclass(frozen=True, slots=True)
class Seating:
    """Seats for `threads` workers, the same number at each memory node or as near to that as cores allow.

    affinity: "cores" binds each worker to a core of its own, fast cores first; more workers than cores share them.
    "none" binds them to their node, and on a machine of one node not at all. note(name, detail) is told where the
    system does not let a thread be bound.
    """

    threads: int
    topology: Topology = UNKNOWN
    affinity: Affinity = "none"
    note: Note = _log

    @classmethod
    def of(cls, threads: "int | Seating") -> "Seating":
        """A number of threads as a seating on one node, without bounds."""
        return threads if isinstance(threads, Seating) else cls(threads)

    @property
    def nodes(self) -> int:
        """Memory nodes that have workers: 0 to nodes - 1."""
        return max(1, min(self.topology.nodes, self.threads))

    @property
    def seats(self) -> tuple[Seat, ...]:
        """The seat of each worker; worker 0 sits at node 0."""
        cores = [self.topology.cores_of(node) for node in range(self.nodes)]
        taken = [0] * self.nodes
        seats = []
        for _ in range(self.threads):
            node = min(range(self.nodes), key=lambda n: taken[n] / max(1, len(cores[n])))
            seat = self.at(node)
            if self.affinity == "cores" and cores[node]:
                seat = Seat(node, frozenset(cores[node][taken[node] % len(cores[node])].cpus))
            seats.append(seat)
            taken[node] += 1
        return tuple(seats)

    def at(self, node: int) -> Seat:
        """A seat anywhere at a node."""
        return Seat(node, self.topology.cpus_of(node) if self.topology.nodes > 1 else None)

    def take(self, seat: Seat) -> None:
        """Bind the calling thread to the seat's CPUs. Where that fails, it goes on unbound and `note` is told."""
        if seat.cpus is None:
            return
        try:
            bind(seat.cpus)
        except OSError as error:
            self.note(
                "thread_not_bound",
                f"a thread of memory node {seat.node} could not be bound to the CPUs {sorted(seat.cpus)}: {error}; "
                "it runs anywhere, which is slower where its memory is far",
            )


def bind(cpus: frozenset[int], thread: int = 0) -> None:
    """Let the thread of a native id, or the calling one, run on these CPUs only. Raises OSError if that is refused."""
    if not hasattr(os, "sched_setaffinity"):
        raise OSError("this system binds no threads")
    os.sched_setaffinity(thread, cpus)
