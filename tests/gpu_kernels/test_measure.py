"""Measuring cards, with a torch whose cards are played."""

from types import SimpleNamespace
from typing import Any

from isotherm.gpu_kernels import measure
from isotherm.gpu_kernels.measure import measure_cards

GIB = 1 << 30


class Clock:
    """Seconds go by only when work is done."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Memory:
    """Bytes on a card or on the host: copying between them takes the link's time, within a card that of its memory."""

    def __init__(self, clock: Clock, count: int, card: bool, pinned: bool) -> None:
        self.clock, self.count, self.card, self.pinned = clock, count, card, pinned

    def copy_(self, other: "Memory", non_blocking: bool = False) -> None:
        rate = 400e9 if self.card and other.card else 20e9 if self.pinned or other.pinned else 8e9
        self.clock.now += (2 if self.card and other.card else 1) * self.count / rate

    def add_(self, value: int) -> None:
        self.clock.now += 5e-6


def played(cards: int, clock: Clock) -> Any:
    def ones(*shape: int, dtype: Any, device: Any = None, pin_memory: bool = False) -> Memory:
        return Memory(clock, shape[0], device is not None, pin_memory)

    def matmul(left: Memory, right: Memory) -> None:
        clock.now += 2 * left.count**3 / 50e12

    cuda = SimpleNamespace(
        is_available=lambda: cards > 0,
        device_count=lambda: cards,
        mem_get_info=lambda number: ((10 + number) * GIB, 12 * GIB),
        get_device_properties=lambda number: SimpleNamespace(name=f"card {number}"),
        synchronize=lambda number: None,
    )
    return SimpleNamespace(cuda=cuda, ones=ones, matmul=matmul, device=lambda *name: name, uint8=1, float16=2)


def samples(cards: int, monkeypatch: Any) -> list[measure.CardSamples]:
    clock = Clock()
    monkeypatch.setattr(measure, "time", clock)
    return measure_cards(played(cards, clock))


def test_no_card_is_no_error(monkeypatch: Any) -> None:
    assert samples(0, monkeypatch) == []


def test_each_card_is_measured(monkeypatch: Any) -> None:
    cards = samples(2, monkeypatch)
    assert [(card.name, card.vram_bytes, card.free_bytes) for card in cards] == [
        ("card 0", 12 * GIB, 10 * GIB),
        ("card 1", 12 * GIB, 11 * GIB),
    ]


def test_rates_are_in_the_units_of_their_names(monkeypatch: Any) -> None:
    (card,) = samples(1, monkeypatch)

    def middle(values: list[float]) -> float:
        return round(sorted(values)[len(values) // 2], 3)

    assert middle(card.read_gb_s) == 400
    assert middle(card.tflops) == 50
    assert middle(card.launch_us) == 5
    assert middle(card.to_gb_s) == middle(card.from_gb_s) == 20
    assert middle(card.to_unpinned_gb_s) == middle(card.from_unpinned_gb_s) == 8
    assert 0 < middle(card.hop_us) < 5
