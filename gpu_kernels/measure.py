"""What graphics cards and their links do, measured with torch: for a hardware profile. Nothing where there is no card.

torch is imported only once it is asked for: who has no card may do without.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

_LARGE, _SMALL = 1 << 28, 1 << 14  # bytes; the small ones are a token's activations
_WIDTH = 4096  # of square matrices
_LAUNCHES = 100
_REPEATS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSamples:
    """A card; of each rate and time what was measured, one number a repetition, in the units of the names."""

    name: str
    vram_bytes: int
    free_bytes: int
    read_gb_s: list[float]
    tflops: list[float]
    launch_us: list[float]
    hop_us: list[float]
    to_gb_s: list[float]
    from_gb_s: list[float]
    to_unpinned_gb_s: list[float]
    from_unpinned_gb_s: list[float]


def measure_cards(torch: Any = None) -> list[CardSamples]:
    """Every card that torch can use; torch: the module, imported if it is not given."""
    if torch is None:
        if find_spec("torch") is None:
            return []
        import torch
    if not torch.cuda.is_available():
        return []
    return [_Card(torch, number).samples() for number in range(torch.cuda.device_count())]


class _Card:
    def __init__(self, torch: Any, number: int) -> None:
        self._torch, self._number = torch, number
        self._device = torch.device("cuda", number)

    def samples(self) -> CardSamples:
        torch = self._torch
        free, total = torch.cuda.mem_get_info(self._number)
        large, other = (self._bytes(_LARGE) for _ in range(2))
        small = self._bytes(_SMALL)
        pinned, plain = (torch.ones(_LARGE, dtype=torch.uint8, pin_memory=pin) for pin in (True, False))
        little = torch.ones(_SMALL, dtype=torch.uint8, pin_memory=True)
        left, right = (torch.ones(_WIDTH, _WIDTH, dtype=torch.float16, device=self._device) for _ in range(2))

        def hop() -> None:
            small.copy_(little, non_blocking=True)
            little.copy_(small, non_blocking=True)

        def launches() -> None:
            for _ in range(_LAUNCHES):
                small.add_(1)

        def rates(amount: float, work: Callable[[], object]) -> list[float]:
            return [amount / seconds for seconds in self._times(work)]

        return CardSamples(
            name=torch.cuda.get_device_properties(self._number).name,
            vram_bytes=int(total),
            free_bytes=int(free),
            read_gb_s=rates(2 * _LARGE / 1e9, lambda: other.copy_(large)),  # read and written
            tflops=rates(2 * _WIDTH**3 / 1e12, lambda: torch.matmul(left, right)),
            launch_us=[seconds * 1e6 / _LAUNCHES for seconds in self._times(launches)],
            hop_us=[seconds * 1e6 / 2 for seconds in self._times(hop)],
            to_gb_s=rates(_LARGE / 1e9, lambda: large.copy_(pinned)),
            from_gb_s=rates(_LARGE / 1e9, lambda: pinned.copy_(large)),
            to_unpinned_gb_s=rates(_LARGE / 1e9, lambda: large.copy_(plain)),
            from_unpinned_gb_s=rates(_LARGE / 1e9, lambda: plain.copy_(large)),
        )

    def _bytes(self, count: int) -> Any:
        return self._torch.ones(count, dtype=self._torch.uint8, device=self._device)

    def _times(self, work: Callable[[], object]) -> list[float]:
        """Seconds of each repetition until the card is done, after one that warms up."""
        times = []
        for _ in range(_REPEATS + 1):
            self._torch.cuda.synchronize(self._number)
            started = time.perf_counter()
            work()
            self._torch.cuda.synchronize(self._number)
            times.append(time.perf_counter() - started)
        return times[1:]
