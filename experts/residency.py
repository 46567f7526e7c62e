"""Residency: which experts lie on which accelerator, in which slot, and how they get there and away again.

The weights in RAM stay the truth: an expert counts as resident once its copy is done, and until then, and after it was
evicted, the CPU computes it. Tables change between steps only.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..gpu_kernels.device import Accelerator, DeviceError, DeviceMemoryError, Event
from ..gpu_kernels.tensors import SENTINEL
from ..placement.placed import Placement
from ..placement.rebalance import Swap
from ..placement.shape import CPU
from .bank import Bank, parts_of
from .bank_check import check_contents, check_tables
from .errors import DeviceFullError
from .pack import PackedWeights
from .page_cache import PageCache
from .transfer import Transfer, places_of


@dataclass(frozen=True, slots=True)
class _Arrival:
    """An expert on its way to a slot."""

    layer: int
    expert: int
    device: int
    slot: int
    event: Event


class Residency:
    """Of the experts in `weights`, on accelerators that are known by their number.

    where: int8 [experts] of each layer, CPU or the accelerator; none for a dense layer. banks: by layer and
    accelerator. moves: how often `where` or banks changed; layout: how often banks did, and with them addresses.
    """

    def __init__(self, weights: PackedWeights, num_layers: int, accelerators: Sequence[Accelerator]) -> None:
        self.accelerators = tuple(accelerators)
        self._weights = weights
        self._sizes = [len(weights.banks.get(f"layers.{layer}.experts.gate", ())) for layer in range(num_layers)]
        self.where = tuple(np.full(size, CPU, np.int8) for size in self._sizes)
        self._pinned = tuple(np.zeros(size, np.bool_) for size in self._sizes)
        self.banks: dict[tuple[int, int], Bank] = {}
        self.moves = self.layout = 0
        self._transfers = [Transfer(accelerator) for accelerator in accelerators]
        self._arrivals: list[_Arrival] = []
        self._page_cache = PageCache(weights.arena)

    def needed_bytes(self, placement: Placement, device: int) -> int:
        """Memory that the experts of a placement take on an accelerator."""
        return sum(
            Bank.needed_bytes(parts_of(self._weights, layer), slots, self._sizes[layer])
            for layer, slots in _slots(placement, device)
        )

    def place(self, placement: Placement) -> None:
        """Take slots for all experts that are to lie on accelerators, and bring these there.

        Raises DeviceFullError, before a weight is read, where they do not fit, and then takes nothing; DeviceError
        where a copy fails.
        """
        try:
            for device in range(len(self.accelerators)):
                for layer, slots in _slots(placement, device):
                    self.reserve(layer, device, slots)
        except DeviceMemoryError as error:
            self.close()
            raise DeviceFullError(f"{self._lacking(placement)}: {error}") from error
        for layer, experts in enumerate(placement.experts):
            for expert in np.flatnonzero(experts != CPU):
                self.load(layer, int(expert), int(experts[expert]))
        self.settle(wait=True)

    def _lacking(self, placement: Placement) -> str:
        parts = [
            f"{accelerator.name} has {(accelerator.limit_bytes - accelerator.used_bytes) >> 20} MiB free for experts "
            f"of {self.needed_bytes(placement, device) >> 20} MiB"
            for device, accelerator in enumerate(self.accelerators)
        ]
        return f"{'; '.join(parts)}; make a plan for less memory"

    def reserve(self, layer: int, device: int, slots: int) -> None:
        """Take `slots` empty slots of a layer. Raises DeviceMemoryError, ValueError where it has some already."""
        if (layer, device) in self.banks:
            raise ValueError(f"layer {layer} has slots on accelerator {device} already")
        parts, accelerator = parts_of(self._weights, layer), self.accelerators[device]
        self.banks[layer, device] = Bank.of(accelerator, parts, slots, self._sizes[layer])
        self._relaid()

    def _relaid(self) -> None:
        self.moves, self.layout = self.moves + 1, self.layout + 1

    def load(self, layer: int, expert: int, device: int) -> None:
        """Begin to bring an expert of the CPU to a free slot. Raises ValueError where that cannot be."""
        bank = self.banks.get((layer, device))
        free = bank.free_slots() if bank else []
        if bank is None or not free:
            raise ValueError(f"layer {layer} has no free slot on accelerator {device}")
        self._check_here(layer, expert)
        self._send(bank, layer, expert, device, free[0])

    def _check_here(self, layer: int, expert: int) -> None:
        on_its_way = any((arrival.layer, arrival.expert) == (layer, expert) for arrival in self._arrivals)
        if self.where[layer][expert] != CPU or on_its_way:
            raise ValueError(f"expert {expert} of layer {layer} is on an accelerator, or on its way to one, already")

    def _send(self, bank: Bank, layer: int, expert: int, device: int, slot: int) -> None:
        accelerator, transfer = self.accelerators[device], self._transfers[device]
        accelerator.wait("to", accelerator.record("compute"))  # nothing still reads what was in the slot
        for matrix, packed in zip(bank.matrices, parts_of(self._weights, layer, expert), strict=True):
            transfer.send_matrix(matrix.tiles[slot], self._weights, packed)
        bank.arriving[slot] = expert
        self._arrivals.append(_Arrival(layer, expert, device, slot, accelerator.record("to")))

    def evict(self, layer: int, expert: int) -> None:
        """From now on the CPU computes an expert. Raises ValueError for one that is pinned or not on an accelerator."""
        bank, slot = self._slot_of(layer, expert)
        if self._pinned[layer][expert]:
            raise ValueError(f"expert {expert} of layer {layer} is pinned")
        bank.experts[slot] = SENTINEL
        self._leave(layer, expert)
        bank.tell()

    def _leave(self, layer: int, expert: int) -> None:
        """The CPU computes an expert from now on, and needs its weights in RAM."""
        self.where[layer][expert] = CPU
        self.moves += 1
        self._page_cache.take_back(self._places(layer, expert))

    def _places(self, layer: int, expert: int) -> Iterator[tuple[int, int]]:
        for matrix in parts_of(self._weights, layer, expert):
            yield from places_of(self._weights, matrix)

    def _slot_of(self, layer: int, expert: int) -> tuple[Bank, int]:
        device = int(self.where[layer][expert])
        if device == CPU:
            raise ValueError(f"expert {expert} of layer {layer} is not on an accelerator")
        bank = self.banks[layer, device]
        return bank, bank.experts.index(expert)

    def swap(self, swaps: Sequence[Swap]) -> None:
        """Begin to bring the promoted experts into the slots of the demoted ones, which the CPU computes at once.

        Raises ValueError, before anything changes, for a swap that does not fit.
        """
        for swap in swaps:
            self._check_here(swap.layer, swap.promoted)
            if self.where[swap.layer][swap.demoted] != swap.device or self._pinned[swap.layer][swap.demoted]:
                raise ValueError(
                    f"expert {swap.demoted} of layer {swap.layer} is not on accelerator {swap.device}, or is pinned"
                )
        for device in sorted({swap.device for swap in swaps}):  # one that fails leaves the others as they are
            here = [swap for swap in swaps if swap.device == device]
            slots = [self._slot_of(swap.layer, swap.demoted) for swap in here]
            for swap in here:
                self.evict(swap.layer, swap.demoted)
            for swap, (bank, slot) in zip(here, slots, strict=True):  # after all tables, which compute waits for
                self._send(bank, swap.layer, swap.promoted, device, slot)

    def pin(self, layer: int, expert: int, pinned: bool = True) -> None:
        """Keep an expert on its accelerator, or no longer."""
        self._pinned[layer][expert] = pinned

    def settle(self, *, wait: bool = False) -> int:
        """Count as resident what has arrived; how many are still on their way. wait: until all have arrived.

        Raises DeviceError where a copy failed: those experts stay on the CPU, and their slots are free.
        """
        arrivals, self._arrivals = self._arrivals, []
        changed: list[Bank] = []
        fault: DeviceError | None = None
        for arrival in arrivals:
            bank = self.banks[arrival.layer, arrival.device]
            try:
                if not (wait or arrival.event.is_done()):
                    self._arrivals.append(arrival)
                    continue
                self.accelerators[arrival.device].synchronise(arrival.event)
            except DeviceError as error:
                fault = error
                del bank.arriving[arrival.slot]
                continue
            del bank.arriving[arrival.slot]
            bank.experts[arrival.slot] = arrival.expert
            self.where[arrival.layer][arrival.expert] = arrival.device
            self.moves += 1
            self._page_cache.give_back(self._places(arrival.layer, arrival.expert))
            changed.append(bank)
        for bank in {id(bank): bank for bank in changed}.values():
            try:
                bank.tell()
            except DeviceError as error:
                fault = error
        if fault:
            raise fault
        return len(self._arrivals)

    def bank(self, layer: int, device: int) -> Bank | None:
        """The slots of a layer on an accelerator, if it has any."""
        return self.banks.get((layer, device))

    def is_split(self, layer: int) -> bool:
        """Whether experts of the layer can lie on accelerators."""
        return any((layer, device) in self.banks for device in range(len(self.accelerators)))

    def free_slots(self, layer: int, device: int) -> int:
        bank = self.bank(layer, device)
        return len(bank.free_slots()) if bank else 0

    def nbytes(self, device: int) -> int:
        """Memory of the slots on an accelerator, and of their tables."""
        return sum(bank.nbytes for (_, number), bank in self.banks.items() if number == device)

    @property
    def given_back_bytes(self) -> int:
        """RAM of weights that the system may have for something else, since only accelerators use them."""
        return self._page_cache.given_back_bytes

    def check_integrity(self, *, contents: bool = True) -> None:
        """Raises RuntimeError where tables do not agree, or, with `contents`, memory differs from the weights in RAM;
        waits for the devices then."""
        for layer, where in enumerate(self.where):
            banks = {device: bank for (row, device), bank in self.banks.items() if row == layer}
            check_tables(layer, where, banks)
            for bank in banks.values() if contents else ():
                check_contents(layer, bank, self._weights)

    def coming(self, layer: int) -> frozenset[int]:
        """Experts of a layer that are on their way to accelerators."""
        return frozenset(arrival.expert for arrival in self._arrivals if arrival.layer == layer)

    def on_their_way(self) -> tuple[tuple[int, int, int], ...]:
        """Layer, expert and accelerator of each expert that is."""
        return tuple((arrival.layer, arrival.expert, arrival.device) for arrival in self._arrivals)

    def free(self, layer: int, device: int) -> None:
        """Give back the slots of a layer, to which nothing is on its way; the CPU computes the experts in them. Waits
        until nothing reads them."""
        self.accelerators[device].synchronise()
        self._leave_all(layer, device)
        self.banks.pop((layer, device)).release()
        self._relaid()

    def _leave_all(self, layer: int, device: int) -> None:
        for expert in np.flatnonzero(self.where[layer] == device):
            self._leave(layer, int(expert))

    def drop(self, device: int) -> None:
        """Give back all memory of an accelerator, which may have failed; the CPU computes its experts."""
        self._arrivals = [arrival for arrival in self._arrivals if arrival.device != device]
        for layer in range(len(self.where)):
            self._leave_all(layer, device)
            bank = self.banks.pop((layer, device), None)
            if bank:
                bank.release()
                self._relaid()

    def close(self) -> None:
        """Give all memory back."""
        for device in range(len(self.accelerators)):
            self.drop(device)


def _slots(placement: Placement, device: int) -> list[tuple[int, int]]:
    """Layers with experts on an accelerator, and how many."""
    counts = [(layer, int((experts == device).sum())) for layer, experts in enumerate(placement.experts)]
    return [(layer, count) for layer, count in counts if count]
