"""ResidentRoom: how much memory of accelerators experts may take. It is given back at once, and taken again little by
little; the CPU computes what has no room, or is on its way."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..gpu_kernels.sizes import size_text
from ..placement.shape import CPU
from .bank import Bank, parts_of
from .errors import DeviceFullError
from .pack import PackedWeights
from .residency import Residency

_SHED = 4  # where memory has run out one part in so many of what experts take is given back

Key = tuple[int, int]  # a layer and an accelerator


class ResidentRoom:
    """Of a residency that has just been placed: no layer gets more slots on an accelerator than it has there now.

    heat: float64 [experts] of each layer, by which experts are chosen for free slots; may be replaced at any time.
    """

    def __init__(self, residency: Residency, weights: PackedWeights) -> None:
        self._residency, self._weights = residency, weights
        self.heat: Sequence[NDArray[np.float64]] = [np.zeros(len(where)) for where in residency.where]
        self._planned = {key: len(bank.experts) for key, bank in sorted(residency.banks.items())}
        self._slots = dict(self._planned)  # that there are to be
        self._before: dict[Key, frozenset[int]] = {}  # who lived in slots that were given back
        self._growing: list[Key] = []  # whose slots are still to be taken or filled

    @property
    def is_growing(self) -> bool:
        """Whether there is something for `go_on` to do."""
        return bool(self._growing)

    def grows(self, device: int) -> bool:
        """Whether there is something to do on that accelerator."""
        return any(key[1] == device for key in self._growing)

    def fixed_bytes(self, device: int) -> int:
        """Memory of an accelerator that experts do not take, and that cannot be given back."""
        return self._residency.accelerators[device].used_bytes - self._residency.nbytes(device)

    def set_limit(self, device: int, nbytes: int) -> None:
        """Let an accelerator use no more than so many bytes from now on. What it has beyond that is given back when
        this returns; where there is room for more, `go_on` takes it.

        Raises DeviceFullError where what cannot be given back is more, DeviceMemoryError for more than the accelerator
        has; nothing changes then.
        """
        self.check_limit(device, nbytes)
        accelerator, fixed = self._residency.accelerators[device], self.fixed_bytes(device)
        if nbytes > accelerator.limit_bytes:
            accelerator.set_limit(nbytes)
        self._growing = [key for key in self._growing if key[1] != device]
        for key, slots in self._allotted(device, nbytes - fixed).items():
            self._slots[key] = slots
            if slots < self._has(key):
                self._give_back(key)
            if slots > self._has(key):
                self._growing.append(key)
        accelerator.set_limit(nbytes)

    def check_limit(self, device: int, nbytes: int) -> None:
        """Raises what `set_limit` does for a limit that cannot be, and changes nothing."""
        accelerator, fixed = self._residency.accelerators[device], self.fixed_bytes(device)
        if nbytes < fixed:
            raise DeviceFullError(
                f"{accelerator.name} needs {size_text(fixed)} for layers and buffers that cannot be moved, and was to "
                f"have {size_text(nbytes)}"
            )
        before = accelerator.limit_bytes
        if nbytes > before:  # the device knows what it has
            accelerator.set_limit(nbytes)
            accelerator.set_limit(before)

    def shed(self, device: int) -> int:
        """Memory has run out there: give back a part of what experts take. How many bytes; 0 if they have none."""
        before = self._residency.nbytes(device)
        if before:
            self.set_limit(device, self.fixed_bytes(device) + before * (_SHED - 1) // _SHED)
        return before - self._residency.nbytes(device)

    def go_on(self, is_over: Callable[[], bool]) -> None:
        """Bring experts to slots that are to be filled, until `is_over`, but one at least.

        Raises DeviceError where that fails; nothing more is tried there then.
        """
        while self._growing:
            key = self._growing[0]
            try:
                is_full = self._bring_one(*key)
            except BaseException:
                self._growing = [other for other in self._growing if other[1] != key[1]]
                raise
            if is_full:
                self._growing.remove(key)
                if self._slots[key] == self._planned[key]:
                    self._before.pop(key, None)
            if is_over():
                return

    def forget(self, device: int) -> None:
        """It was given up."""
        for kept in (self._planned, self._slots, self._before):
            for key in [key for key in kept if key[1] == device]:
                del kept[key]
        self._growing = [key for key in self._growing if key[1] != device]

    def _allotted(self, device: int, nbytes: int) -> dict[Key, int]:
        """Slots of the device's layers in that much memory: the first layers keep all of theirs. A layer that is split
        waits for the CPU in any case, so whole ones are worth more than as many experts of several."""
        found: dict[Key, int] = {}
        for key, planned in self._planned.items():
            if key[1] != device:
                continue
            parts, experts = parts_of(self._weights, key[0]), len(self.heat[key[0]])
            table = Bank.needed_bytes(parts, 0, experts)
            slot = Bank.needed_bytes(parts, 1, experts) - table
            found[key] = max(0, min(planned, (nbytes - table) // slot))
            nbytes -= found[key] * slot + (table if found[key] else 0)
        return found

    def _has(self, key: Key) -> int:
        bank = self._residency.banks.get(key)
        return len(bank.experts) if bank else 0

    def _give_back(self, key: Key) -> None:
        layer, device = key
        self._residency.settle(wait=True)  # of what is on its way nothing is known before it has come
        here = frozenset(map(int, np.flatnonzero(self._residency.where[layer] == device)))
        self._before[key] = self._before.get(key, frozenset()) | here
        self._residency.free(layer, device)

    def _bring_one(self, layer: int, device: int) -> bool:
        """Whether all slots are full."""
        key, slots = (layer, device), self._slots[layer, device]
        if self._has(key) and self._has(key) != slots:
            self._give_back(key)
        if not self._has(key):
            self._residency.reserve(layer, device, slots)
        if self._residency.free_slots(layer, device):
            self._residency.load(layer, self._next(layer, device), device)
        return not self._residency.free_slots(layer, device)

    def _next(self, layer: int, device: int) -> int:
        """The hottest expert that is on the CPU and stays there; of equal ones one that was here before."""
        coming = self._residency.coming(layer)
        candidates = [int(e) for e in np.flatnonzero(self._residency.where[layer] == CPU) if int(e) not in coming]
        before, heat = self._before.get((layer, device), frozenset()), self.heat[layer]
        return min(candidates, key=lambda expert: (-heat[expert], expert not in before, expert))
