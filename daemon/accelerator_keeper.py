"""AcceleratorKeeper: gives memory of accelerators back and takes it again, and knows how they are used."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..experts.errors import DeviceFullError
from ..experts.hybrid_executor import HybridExecutor
from ..gpu_kernels.device import DeviceError, DeviceMemoryError
from ..gpu_kernels.sizes import size_text
from ..placement.ledger import RAM, device_name
from ..placement.placed import Placement
from ..placement.plan import Plan
from ..placement.shape import CPU
from .accelerator_stats import AcceleratorStats, DeviceStats
from .attendants import Answers
from .choices import Choosing, StepRows
from .errors import EngineError, InvalidRequestError
from .events import EventLog
from .expert_use import ExpertUse
from .pace import Pace
from .step import StepPlan
from .vram import SetVram, ShowPlacement
from .vram_watch import LOOK_S, VramWatch

GROW_S = 0.005  # for which bringing experts back may hold a step up; one that takes longer is brought alone


class AcceleratorKeeper:
    """Of an executor, in its runner's thread (see `attendants.Attendant`). plan: by which it was loaded.
    least_free: bytes that are to stay free for other programs."""

    def __init__(
        self, runner: Choosing, executor: HybridExecutor, plan: Plan, events: EventLog, least_free: int
    ) -> None:
        self._runner, self._executor, self._plan, self._events = runner, executor, plan, events
        self._residency, self._room = executor.residency, executor.room
        self._accelerators = executor.residency.accelerators
        self._first_limits = [accelerator.limit_bytes for accelerator in self._accelerators]
        self._asked = list(self._first_limits)  # by operators
        self._watch = VramWatch(self._accelerators, least_free)
        self._crowded: set[int] = set()  # accelerators of which other programs take more than can be given to them
        self._layers = [layer for layer, where in enumerate(self._residency.where) if len(where)]
        experts = len(self._residency.where[self._layers[0]]) if self._layers else 0
        self._use = ExpertUse(len(self._layers), experts, len(self._accelerators))
        self._decode, self._prefill = Pace(), Pace()
        self._stats = self._snapshot()

    @property
    def commands(self) -> Answers:
        return {SetVram: self._set_vram, ShowPlacement: self._show}

    def stats(self) -> AcceleratorStats:
        """After the last step. Any thread may ask."""
        return self._stats

    def placement(self) -> Placement:
        """Where everything lies, after the last step. Any thread may ask."""
        experts = tuple(where.copy() for where in self._residency.where)
        return replace(self._executor.placement, experts=experts)

    def between_steps(self, plan: StepPlan | None) -> float | None:
        if plan is not None:
            self._look_at(plan)
        self._make_room()
        if self._room.is_growing:
            self._grow(wait=plan is None)
        self._stats = self._snapshot()
        return 0.0 if plan is None and self._room.is_growing else LOOK_S

    def _look_at(self, plan: StepPlan) -> None:
        seconds = self._accelerators[0].now() - self._executor.started
        rows = StepRows.of(plan.chunks)
        if not len(rows.prefill):
            self._decode.add(len(rows.decode), seconds)
        elif not len(rows.decode):
            self._prefill.add(len(rows.prefill), seconds)
        choices = self._runner.choices()
        if choices is not None and len(rows.decode):
            self._use.count(choices.decode(rows)[0], self._where())

    def _where(self) -> NDArray[np.int8]:
        """Of all experts, layer by layer."""
        return np.concatenate(self._residency.where)

    def _grow(self, *, wait: bool) -> None:
        """wait: until what was sent has arrived, since no step is held up."""
        clock = self._accelerators[0]
        end = clock.now() + GROW_S
        for row, layer in enumerate(self._layers):
            self._room.heat[layer][:] = self._use.heat[row]
        try:
            self._room.go_on(lambda: clock.now() >= end)
            if wait:
                self._residency.settle(wait=True)
        except DeviceError as error:  # if the device is lost, the next step finds out what that means
            self._events.record("vram_not_taken", f"{error}; what it was to compute stays on the CPU")

    def _set_vram(self, command: SetVram) -> dict[str, Any]:
        numbers = {device_name(number): number for number in range(len(self._accelerators))}
        unknown = [name for name in command.limits if name not in numbers]
        if unknown:
            raise InvalidRequestError(f"there is no {unknown[0]!r}; there is {', '.join(numbers)}", unknown[0])
        wanted = {
            numbers[name]: self._first_limits[numbers[name]] if limit is None else limit
            for name, limit in command.limits.items()
        }
        for change in (self._room.check_limit, self._give):  # all or nothing
            for number, limit in wanted.items():
                self._told(change, number, limit)
        for number, limit in wanted.items():
            self._asked[number] = limit
        self._stats = self._snapshot()
        return {"devices": [device_json(device) for device in self._stats.devices]}

    def _make_room(self) -> None:
        """For other programs, and take it again when they have gone."""
        for number, limit in self._watch.look(self._asked) if not self._executor.lost else ():
            fixed, name = self._room.fixed_bytes(number), device_name(number)
            if limit >= fixed:
                self._crowded.discard(number)
            elif number not in self._crowded:
                self._crowded.add(number)
                detail = (
                    f"{name}: other programs leave {size_text(max(limit, 0))}, and {size_text(fixed)} cannot be moved"
                )
                self._events.record("vram_short", f"{name}: {detail}; end them, or make a plan for less memory")
            before = self._accelerators[number].limit_bytes
            try:
                self._give(number, max(limit, fixed))
            except (DeviceFullError, DeviceError) as error:
                self._events.record("vram_not_changed", f"{name}: {error}")
            if limit > before:
                self._events.record("vram_taken_again", f"{name} may use {size_text(limit)}", logging.INFO)

    def _give(self, number: int, limit: int) -> None:
        before = self._accelerators[number].used_bytes
        self._room.set_limit(number, limit)
        given = before - self._accelerators[number].used_bytes
        if given > 0:
            detail = f"{size_text(given)} of {device_name(number)}; the CPU computes those experts"
            self._events.record("vram_given_back", detail)

    @staticmethod
    def _told(change: Callable[[int, int], None], number: int, limit: int) -> None:
        """Do it; what a device has against it is told to whoever asked."""
        name = device_name(number)
        try:
            change(number, limit)
        except (DeviceFullError, DeviceMemoryError) as error:
            raise InvalidRequestError(f"{name}: {error}", name) from error
        except DeviceError as error:
            raise EngineError(f"{name}: {error}") from error

    def _show(self, _: ShowPlacement) -> dict[str, Any]:
        placement, plan = self.placement(), self._plan
        layers = [
            {"layer": layer, "dense": device_name(dense), "experts": [device_name(int(at)) for at in experts]}
            for layer, (dense, experts) in enumerate(zip(placement.dense, placement.experts, strict=True))
        ]
        return {
            "model": plan.model,
            "policy": plan.policy,
            "reasons": list(plan.reasons),
            "embed": device_name(placement.embed),
            "head": device_name(placement.head),
            "layers": layers,
            "devices": [device_json(device) for device in self._stats.devices],
            RAM: ram_json(self._stats),
        }

    def _kv(self, number: int) -> dict[str, int]:
        kv = self._executor.kv.get(number)
        if kv is None:
            return {}
        return {
            "kv_blocks": kv.blocks,
            "kv_block_bytes": kv.block_bytes,
            "kv_offloaded": kv.offloaded,
            "kv_brought_back": kv.brought_back,
        }

    def _free(self, number: int) -> int:
        try:
            return self._accelerators[number].free_bytes
        except DeviceError:
            return 0

    def _snapshot(self) -> AcceleratorStats:
        residency, hits = self._residency, self._use.hits
        counts = np.bincount(self._where() + 1, minlength=len(self._accelerators) + 1)
        return AcceleratorStats(
            devices=tuple(
                DeviceStats(
                    device=device_name(number),
                    name=accelerator.name,
                    limit_bytes=accelerator.limit_bytes,
                    used_bytes=accelerator.used_bytes,
                    expert_bytes=residency.nbytes(number),
                    free_bytes=self._free(number),
                    experts=int(counts[number + 1]),
                    hits=int(hits[number + 1]),
                    growing=self._room.grows(number),
                    lost=number in self._executor.lost,
                    **self._kv(number),
                )
                for number, accelerator in enumerate(self._accelerators)
            ),
            experts=int(counts[CPU + 1]),
            hits=int(hits[CPU + 1]),
            given_back_bytes=residency.given_back_bytes,
            decode_tok_s=self._decode.rate,
            prefill_tok_s=self._prefill.rate,
            coming=residency.on_their_way(),
        )


def device_json(device: DeviceStats) -> dict[str, Any]:
    """As operators are told."""
    return {name: getattr(device, name) for name in DeviceStats.__slots__}


def ram_json(stats: AcceleratorStats) -> dict[str, int]:
    """As operators are told."""
    return {name: getattr(stats, name) for name in ("experts", "hits", "given_back_bytes")}
