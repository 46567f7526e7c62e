"""Fit or refuse: whether a model and its KV cache find room, and the smallest change that would give it."""

from collections.abc import Sequence
from dataclasses import dataclass

from .ledger import kv_positions
from .shape import ModelShape

GIB = 2**30


class FitError(ValueError):
    """It does not fit; the message has the numbers and what would fit."""


class CardTooSmallError(FitError):
    """An accelerator has no room for any weight. reason: with the numbers; what to do depends on who asks."""

    def __init__(self, device: int, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.device, self.reason = device, reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Bytes for weights and KV cache: of RAM, and of each accelerator; all that is asked for beside them is off."""

    ram: int
    vram: tuple[int, ...] = ()

    @property
    def total(self) -> int:
        return max(self.ram, 0) + sum(max(size, 0) for size in self.vram)


@dataclass(frozen=True, slots=True)
class Alternative:
    """The same model otherwise. option: how it is asked for, such as "--kv-cache int8"."""

    option: str
    shape: ModelShape


def needed(shape: ModelShape, streams: int, context: int) -> int:
    """Bytes of weights and of the KV cache of so many streams with so many tokens each."""
    return shape.nbytes + kv_positions(shape, streams, context) * shape.kv_bytes


def check_fit(
    shape: ModelShape, room: Room, streams: int, context: int, alternatives: Sequence[Alternative] = ()
) -> None:
    """Raises FitError, naming every change that would do alone, where weights and KV cache find no room."""
    missing = needed(shape, streams, context) - room.total
    if missing <= 0:
        return
    where = "of memory" if not room.vram else f"of RAM ({_gib(room.ram)}) and accelerators ({_gib(sum(room.vram))})"
    kv = needed(shape, streams, context) - shape.nbytes
    remedies = list(_smaller(shape, room, streams, context))
    remedies += [item.option for item in alternatives if needed(item.shape, streams, context) <= room.total]
    more = f"{_gib(missing)} more of RAM or on an accelerator"
    would = f"any of these would fit: {', '.join(remedies)}, or {more}" if remedies else f"{more} would fit"
    raise FitError(
        f"{shape.name} needs {_gib(shape.nbytes)} for its weights and {_gib(kv)} for the KV cache of "
        f"{_streams(streams)} of {context} tokens, but {_gib(room.total)} {where} can be used; {would}"
    )


def _smaller(shape: ModelShape, room: Room, streams: int, context: int) -> Sequence[str]:
    """Fewer streams, or a shorter context, that would fit."""
    positions = (room.total - shape.nbytes) // max(shape.kv_bytes, 1)
    remedies = []
    fewer = positions // kv_positions(shape, 1, context)
    if 1 <= fewer < streams:
        remedies.append(f"--streams {fewer}")
    shorter = positions // streams // shape.kv_block * shape.kv_block
    if shorter >= shape.kv_block:
        remedies.append(f"--context {shorter}")
    return remedies


def _streams(count: int) -> str:
    return "one stream" if count == 1 else f"{count} streams"


def _gib(size: int) -> str:
    return f"{max(size, 0) / GIB:.2f} GiB"
