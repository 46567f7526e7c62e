"""PlacementHistory: where experts came to lie while a model was served, and by what traffic; it outlives the process.

A file of JSON for each model, replaced in one step. It holds numbers of experts only: no text, no token.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from ..placement.files import replacing
from ..placement.placed import Placement
from ..placement.shape import CPU

VERSION = 1
MAX_BYTES = 64 << 20


class HistoryError(ValueError):
    """A file is no history that could be used; the text names it and says why."""


@dataclass(frozen=True, slots=True)
class Move:
    """An expert of the CPU came to an accelerator, and one of there to the CPU."""

    layer: int
    device: int
    promoted: int
    demoted: int

    def back(self) -> "Move":
        return Move(self.layer, self.device, self.demoted, self.promoted)


@dataclass(frozen=True, slots=True)
class Round:
    """Moves that were made together. at: seconds since the epoch."""

    at: float
    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementHistory:
    """fingerprint: of the model; accelerators: their names; layers: the numbers of the MoE layers.

    where: int8 [MoE layers, experts], the device of each; rates: float64 of that shape, how often a token chooses each;
    rest: tokens to wait before the next round. rounds: those that can be taken back, the oldest first; made: how many
    were made in all, taken back or not.
    """

    fingerprint: str
    accelerators: tuple[str, ...]
    layers: tuple[int, ...]
    where: NDArray[np.int8]
    rates: NDArray[np.float64]
    rest: float = 0.0
    rounds: tuple[Round, ...] = ()
    made: int = 0

    def fits(self, placement: Placement, accelerators: Sequence[str]) -> bool:
        """Whether a placement has the same slots, in each layer on each accelerator."""
        if tuple(accelerators) != self.accelerators or moe_layers(placement) != self.layers:
            return False
        planned = table(placement)
        return planned.shape == self.where.shape and all(
            np.array_equal((planned == device).sum(axis=1), (self.where == device).sum(axis=1))
            for device in range(len(accelerators))
        )

    def placement(self, base: Placement) -> Placement:
        """The dense parts of `base`, with the experts where they came to lie."""
        return with_experts(base, self.layers, self.where)

    def earlier(self, base: Placement) -> list[Placement]:
        """The placements before each round. Raises ValueError if they do not lead to the last one."""
        where, found = self.where.copy(), []
        rows = {layer: row for row, layer in enumerate(self.layers)}
        for past in reversed(self.rounds):
            for move in past.moves:
                row = where[rows[move.layer]]
                if row[move.promoted] != move.device or row[move.demoted] != CPU:
                    raise ValueError(f"{move} does not lead to where the experts lie")
                row[move.promoted], row[move.demoted] = CPU, move.device
            found.append(with_experts(base, self.layers, where))
        return found[::-1]


def moe_layers(placement: Placement) -> tuple[int, ...]:
    return tuple(layer for layer, experts in enumerate(placement.experts) if len(experts))


def table(placement: Placement) -> NDArray[np.int8]:
    """int8 [MoE layers, experts]."""
    return np.stack([placement.experts[layer] for layer in moe_layers(placement)]).astype(np.int8)


def with_experts(base: Placement, layers: Sequence[int], where: NDArray[np.int8]) -> Placement:
    experts = list(base.experts)
    for row, layer in enumerate(layers):
        experts[layer] = where[row].copy()
    return replace(base, experts=tuple(experts))


def save_history(path: Path, history: PlacementHistory) -> None:
    """At any time the file is the old one or all of the new one. Raises OSError."""
    content = {
        "kind": "isotherm placement history",
        "version": VERSION,
        "fingerprint": history.fingerprint,
        "accelerators": list(history.accelerators),
        "layers": list(history.layers),
        "where": history.where.tolist(),
        "rates": [[round(rate, 7) for rate in row] for row in history.rates.tolist()],
        "rest": history.rest,
        "made": history.made,
        "rounds": [
            {"at": past.at, "moves": [[m.layer, m.device, m.promoted, m.demoted] for m in past.moves]}
            for past in history.rounds
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(json.dumps(content).encode())


def load_history(path: Path, fingerprint: str) -> PlacementHistory | None:
    """Of the model; None where there is no file. Raises HistoryError for one that cannot be used, OSError."""
    if not path.exists():
        return None
    if path.stat().st_size > MAX_BYTES:
        raise HistoryError(f"{path}: has more than {MAX_BYTES >> 20} MiB, as no placement history has")
    try:
        history = _parse(json.loads(path.read_bytes()))
        history.earlier(_bare(history))
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError) as error:
        raise HistoryError(f"{path}: is damaged, or no placement history: {error}") from error
    if history.fingerprint != fingerprint:
        raise HistoryError(f"{path}: is of another model")
    return history


def remove_parts(path: Path) -> None:
    """Remove what processes left beside the file that ended while they wrote it."""
    for part in path.parent.glob(f"{path.name}.*-*.part"):
        pid = part.name.removeprefix(f"{path.name}.").partition("-")[0]
        if not pid.isdecimal() or int(pid) == os.getpid() or not psutil.pid_exists(int(pid)):
            part.unlink(missing_ok=True)


def _parse(content: Mapping[str, Any]) -> PlacementHistory:
    """Raises what Python does for what is missing or of another type."""
    if content["kind"] != "isotherm placement history" or content["version"] != VERSION:
        raise ValueError(f"it is {content['kind']!r} of version {content['version']!r}")
    where, rates = np.array(content["where"], np.int8), np.array(content["rates"], np.float64)
    layers, names = tuple(map(_whole, content["layers"])), tuple(map(str, content["accelerators"]))
    if where.ndim != 2 or where.shape != rates.shape or len(where) != len(layers) or len({*layers}) != len(layers):
        raise ValueError(f"{where.shape} and {rates.shape} do not fit {len(layers)} layers")
    if not (np.all((where >= CPU) & (where < len(names))) and np.all((rates >= 0) & np.isfinite(rates))):
        raise ValueError("a device or a rate is out of bounds")
    rest = float(content["rest"])
    if not (math.isfinite(rest) and rest >= 0):
        raise ValueError(f"rest is {rest}")
    return PlacementHistory(
        fingerprint=str(content["fingerprint"]),
        accelerators=names,
        layers=layers,
        where=where,
        rates=rates,
        rest=rest,
        rounds=tuple(_round(past) for past in content["rounds"]),
        made=_whole(content["made"]),
    )


def _round(past: Mapping[str, Any]) -> Round:
    return Round(float(past["at"]), tuple(Move(*map(_whole, move)) for move in past["moves"]))


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no number of something")
    return value


def _bare(history: PlacementHistory) -> Placement:
    """A model of nothing but the MoE layers."""
    count = max(history.layers, default=-1) + 1
    if count > len(history.layers) * 1000:
        raise ValueError(f"layer {count - 1} is beyond any model's")
    return Placement(
        dense=(CPU,) * count, experts=tuple(np.zeros(0, np.int8) for _ in range(count)), embed=CPU, head=CPU
    )
