"""Packed weights of any kinds with random numbers, laid out and placed as a model's are: for measuring a machine."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from ..cpu_kernels.crew import Crew
from ..cpu_kernels.seating import Seating
from .formats import FORMATS
from .memory import arena
from .pack import VECTOR, PackedWeights, Slot, arena_bytes, share_of
from .random_weights import fill_anyhow
from .roles import Shape

Bytes = NDArray[np.uint8]


def random_slots(shapes: Mapping[str, Shape], kind_of: Callable[[str], str], nodes: int = 1) -> list[Slot]:
    """Where tensors of those shapes by role lie; kind_of: the packed kind of a role that is a matrix or a bank."""
    slots, offset = list[Slot](), 0
    for role, shape in shapes.items():
        for expert in range(shape[0]) if len(shape) == 3 else (None,):
            kind = kind_of(role) if len(shape) > 1 else VECTOR
            rows, columns = shape[-2:] if len(shape) > 1 else (1, shape[0])
            slots.append(Slot(role, expert, _format_of(kind), kind, rows, columns, offset, nodes))
            offset += slots[-1].nbytes
    return slots


def random_model(
    shapes: Mapping[str, Shape], kind_of: Callable[[str], str], threads: int | Seating = 1
) -> PackedWeights:
    """Weights with numbers that no kernel is slow with. Matrices of one shape and kind hold the same ones, at addresses
    of their own; vectors are ones."""
    seating = Seating.of(threads)
    slots = random_slots(shapes, kind_of, seating.nodes)
    packed = PackedWeights.of(slots, arena(arena_bytes(slots)))
    part = packed.arena.nbytes // seating.nodes
    patterns = {_sort(slot): _pattern(slot) for slot in slots}

    def fill(piece: tuple[Slot, int]) -> None:
        slot, node = piece
        at = node * part + slot.offset
        packed.arena[at : at + slot.nbytes] = patterns[_sort(slot)]

    with Crew(seating) as crew:
        for _ in crew.map(fill, _pieces(slots), lambda piece: piece[1]):
            pass
    return packed


def _pieces(slots: list[Slot]) -> Iterator[tuple[Slot, int]]:
    """Each slot with each node that has a part of it."""
    for slot in slots:
        yield from ((slot, node) for node in range(1 if slot.kind == VECTOR else slot.nodes))


def _sort(slot: Slot) -> tuple[str, int, int]:
    return slot.kind, slot.rows, slot.columns


def _pattern(slot: Slot) -> Bytes:
    out = np.zeros(slot.nbytes, np.uint8)
    if slot.kind == VECTOR:
        out.view(np.float32)[: slot.columns] = 1
    else:
        fill_anyhow(slot.kind, share_of(slot.rows, slot.nodes), slot.columns, out)
    return out


def _format_of(kind: str) -> str:
    """A format that is packed into the kind with the same numbers, if there is one."""
    names = [name for name, row in FORMATS.items() if row.packed == kind]
    return next((name for name in names if FORMATS[name].exact), "F32")
