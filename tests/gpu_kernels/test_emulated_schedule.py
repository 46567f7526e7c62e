"""The emulated device's clock against a schedule by brute force: the longest way through what each step comes after."""

from dataclasses import dataclass
from functools import cache

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from isotherm.gpu_kernels.clock import Clock
from isotherm.gpu_kernels.device import Cost, StreamName
from isotherm.gpu_kernels.device_spec import Spec
from isotherm.gpu_kernels.emulated import Emulated, EmulatedEvent

SPEC = Spec(read_gb_s=1.0, launch_us=3.0, hop_us=7.0, to_gb_s=0.5, from_gb_s=0.25)
UNIT = 1000  # bytes of a copy or kernel, for each of its amount
WORK_S = 4e-6  # of the host, likewise


@dataclass(frozen=True)
class Step:
    """What the host does: a launch or a copy of some amount on a device, an event of its stream (a mark), a wait of the
    stream or of the host for the mark that lies `amount` marks back, if there is one, or work of its own."""

    what: str
    device: int
    stream: StreamName
    amount: int

    @property
    def lane(self) -> tuple[int, str]:
        return self.device, "compute" if self.what == "launch" else self.stream

    @property
    def cost(self) -> Cost:
        return Cost(nbytes=self.amount * UNIT, kernels=2)


STREAMS: tuple[StreamName, ...] = ("compute", "to", "from")
ACTIONS = ("launch", "copy", "copy", "mark", "mark", "wait", "synchronise", "work")
PROGRAMS = st.lists(
    st.builds(Step, st.sampled_from(ACTIONS), st.integers(0, 1), st.sampled_from(STREAMS), st.integers(0, 4)),
    max_size=40,
)


def played(program: list[Step]) -> tuple[list[float], list[float]]:
    """The time of each mark, and of the host after each step, on two emulated devices."""
    clock = Clock()
    devices = [Emulated(SPEC, clock=clock) for _ in range(2)]
    memory = [(device.empty((4 * UNIT,), torch.uint8), device.pinned((4 * UNIT,), torch.uint8)) for device in devices]
    marks: list[EmulatedEvent] = []
    hosts = []
    for step in program:
        device, (there, here) = devices[step.device], (part[: step.amount * UNIT] for part in memory[step.device])
        match step.what:
            case "launch":
                device.launch(lambda: None, step.cost)
            case "copy":
                device.copy(*((here, there) if step.stream == "from" else (there, here)), step.stream)
            case "mark":
                marks.append(device.record(step.stream))
            case "wait" if step.amount < len(marks):
                device.wait(step.stream, marks[-1 - step.amount])
            case "synchronise" if step.amount < len(marks):
                device.synchronise(marks[-1 - step.amount])
            case "work":
                with device.host_work(step.amount * WORK_S):
                    pass
        hosts.append(clock.now)
    return [mark.time for mark in marks], hosts


class Schedule:
    """When a step of a program ends, by what it comes after."""

    def __init__(self, program: list[Step]) -> None:
        self._program = program
        self.end, self.host = cache(self._end), cache(self._host)

    def times(self) -> tuple[list[float], list[float]]:
        """As `played`."""
        marks = [self.end(number) for number, step in enumerate(self._program) if step.what == "mark"]
        return marks, [self.host(number + 1) for number in range(len(self._program))]

    def _host(self, number: int) -> float:
        """Of the host, done with the steps before `number`."""
        if number == 0:
            return 0.0
        step, before = self._program[number - 1], self.host(number - 1)
        if step.what == "work":
            return before + step.amount * WORK_S
        return max(before, self._awaited(number - 1)) if step.what == "synchronise" else before

    def _end(self, number: int) -> float:
        """Of what step `number` has put on its stream."""
        step, ready = self._program[number], self._ready(number)
        if step.what == "mark":
            return ready
        if step.what == "wait":
            return max(ready, self._awaited(number))
        start = max(ready, self.host(number))
        if step.what == "launch":
            return start + (SPEC.work_s(step.cost) + 2 * SPEC.launch_s)
        rate = SPEC.from_gb_s if step.stream == "from" else SPEC.to_gb_s
        return start + step.amount * UNIT / rate / 1e9 + (0.0 if self._follows_a_copy(number) else SPEC.hop_s)

    def _earlier(self, number: int, whats: tuple[str, ...]) -> int | None:
        """The last before `number` of its stream that is one of these."""
        lane = self._program[number].lane
        found = (n for n in range(number) if self._program[n].what in whats and self._program[n].lane == lane)
        return max(found, default=None)

    def _ready(self, number: int) -> float:
        before = self._earlier(number, ("launch", "copy", "mark", "wait"))
        return 0.0 if before is None else self.end(before)

    def _awaited(self, number: int) -> float:
        marks = [n for n in range(number) if self._program[n].what == "mark"]
        amount = self._program[number].amount
        return self.end(marks[-1 - amount]) if amount < len(marks) else 0.0

    def _follows_a_copy(self, number: int) -> bool:
        """It is queued while a copy runs on its stream, and need not wait for anything else."""
        last, ready = self._earlier(number, ("launch", "copy")), self._ready(number)
        if last is None or self._program[last].what != "copy":
            return False
        return self.end(last) == ready > self.host(number)


@settings(max_examples=300)
@given(PROGRAMS)
def test_the_clock_is_that_of_the_longest_way(program: list[Step]) -> None:
    assert played(program) == Schedule(program).times()
