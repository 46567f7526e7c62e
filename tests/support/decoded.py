"""Streams that decode in steps of changing size, and an emulated accelerator that counts what it is told to do."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
from isotherm.daemon.runner import DecoderRunner
from isotherm.daemon.step import Chunk, StepPlan
from isotherm.gpu_kernels.clock import Clock
from isotherm.gpu_kernels.device import Costs
from isotherm.gpu_kernels.device_spec import Spec
from isotherm.gpu_kernels.emulated import Emulated
from numpy.typing import NDArray
from support.modelled import lane
from support.tiny import VOCAB_SIZE

GIB = 1 << 30
SIZES = (1, 3, 4, 2, 8, 5, 1, 7, 3, 8, 6, 4)  # of steps, in streams


def decoding(sizes: Sequence[int] = SIZES, *, streams: int = 8) -> list[StepPlan]:
    """Steps of so many of the streams, others each time, which begin at their first position."""
    rng, ends, steps = np.random.default_rng(len(sizes)), [0] * streams, []
    for size in sizes:
        chunks = []
        for number in rng.permutation(streams)[:size].tolist():
            end = ends[number] = ends[number] + 1
            token = int(rng.integers(VOCAB_SIZE))
            chunks.append(Chunk(str(number), [token], end - 1, lane(number, end), True))
        steps.append(StepPlan(tuple(chunks)))
    return steps


def logits_of(runner: Any, steps: Sequence[StepPlan]) -> list[NDArray[np.float32]]:
    return [runner.execute(step).copy() for step in steps]


def assert_alike(runner: DecoderRunner, steps: Sequence[StepPlan], expected: Sequence[NDArray[np.float32]]) -> None:
    for found, wanted in zip(logits_of(runner, steps), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


class Counted(Emulated):
    """queued: launches, of which a replay is one; captures: how many there were."""

    def __init__(self, number: int = 0, clock: Clock | None = None, late: int | None = None) -> None:
        random = None if late is None else Random(late + number)
        super().__init__(Spec(vram_bytes=GIB, number=number), clock=clock, late=random)
        self.queued = self.captures = 0

    def launch(self, work: Callable[[], object], cost: Costs) -> None:
        self.queued += 1
        super().launch(work, cost)

    def capture(self, work: Callable[[], object]) -> Callable[[], object]:
        self.captures += 1
        replay = super().capture(work)

        def counted() -> None:
            self.queued += 1
            replay()

        return counted


class OneByOne(Counted):
    """As a card whose kernels look at what they compute."""

    replays_calls = False
