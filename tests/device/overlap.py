"""How much of the shorter of an accelerator's and the CPU's work is hidden behind the longer, by its events."""

from dataclasses import dataclass
from functools import partial

import torch
from isotherm.daemon.runner import DecoderRunner
from isotherm.daemon.step import Chunk, StepPlan
from isotherm.gpu_kernels.device import Accelerator, Cost, Event

_BYTES = 1 << 24  # that a launch fills


@dataclass(frozen=True, slots=True)
class Overlap:
    """Seconds of the accelerator alone, of the CPU alone, and of both at once."""

    card: float
    cpu: float
    both: float

    @property
    def hidden(self) -> float:
        """Of the shorter: 1 if all of it is."""
        return (self.card + self.cpu - self.both) / min(self.card, self.cpu)


def overlap(accelerator: Accelerator, runner: DecoderRunner, tokens: int) -> Overlap:
    """runner: one that has nothing on the accelerator. The accelerator fills memory for about as long as the CPU takes
    for a prompt of so many tokens."""
    plan = StepPlan((Chunk("a", [1] * tokens, 0, tuple(range(-(-tokens // 16))), True),))
    memory = accelerator.empty((_BYTES,), torch.uint8)
    try:
        runner.execute(plan)
        _card_seconds(accelerator, memory, 1)
        before = accelerator.now()
        runner.execute(plan)
        cpu = accelerator.now() - before
        launches = max(1, round(cpu / _card_seconds(accelerator, memory, 64) * 64))
        card = _card_seconds(accelerator, memory, launches)
        before = accelerator.now()
        first, last = _work(accelerator, memory, launches)
        runner.execute(plan)
        accelerator.synchronise(last)
        both = max(accelerator.now() - before, last.since(first))
        return Overlap(card, cpu, both)
    finally:
        accelerator.release(memory)


def _card_seconds(accelerator: Accelerator, memory: torch.Tensor, launches: int) -> float:
    first, last = _work(accelerator, memory, launches)
    accelerator.synchronise(last)
    return last.since(first)


def _work(accelerator: Accelerator, memory: torch.Tensor, launches: int) -> tuple[Event, Event]:
    """Queue it; events before and after, the first of which comes when the card is at work already."""
    events = []
    for count in (1, launches):
        for _ in range(count):
            accelerator.launch(partial(memory.fill_, 1), Cost(float(memory.numel())))
        events.append(accelerator.record("compute"))
    return events[0], events[1]
