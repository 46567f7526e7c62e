"""A machine of round numbers that tiny models take some time on, as a hardware profile and as emulated devices."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
from isotherm.cpu_kernels.layout import KINDS
from isotherm.daemon.routing_recorder import RoutingRecorder
from isotherm.daemon.runner import DecoderRunner
from isotherm.daemon.step import Chunk, StepPlan
from isotherm.experts.host_cost import HostCost
from isotherm.experts.model import Model
from isotherm.experts.outline import shape_of
from isotherm.gpu_kernels.clock import Clock
from isotherm.gpu_kernels.device_spec import Spec
from isotherm.gpu_kernels.emulated import Emulated
from isotherm.placement.cost import CostModel
from isotherm.placement.hardware import CpuProfile, Estimate, HardwareProfile
from isotherm.placement.machine import Machine
from isotherm.placement.placed import Placement, Traffic
from isotherm.placement.shape import ModelShape
from isotherm.placement.trace import RoutingTrace
from support.cost_cases import accelerator, cpu
from support.hybrid import hybrid
from support.tiny import VOCAB_SIZE

CARD = {"read_gb_s": 8.0, "launch_us": 0.5, "hop_us": 4.0, "to_gb_s": 2.0, "from_gb_s": 2.0}
TFLOPS = 0.1
GIB = 1 << 30


def host(**values: float) -> CpuProfile:
    """See `cost_cases.cpu`; alike for all kinds of weights, with more memory than its products read."""
    one = cpu(**values)
    products = dict.fromkeys(KINDS, one.products["q4"])
    kv = dict.fromkeys(("f32", "int16"), Estimate(2.0))
    attention = dict.fromkeys(("f32", "int16"), Estimate(4.0))
    return replace(one, products=products, kv_gb_s=kv, attention_gops=attention, read_gb_s={1: Estimate(1e3)})


def profile_of(device: Emulated) -> HardwareProfile:
    """The made-up host with an emulated device."""
    spec = device.spec
    names = ("read_gb_s", "launch_us", "hop_us", "to_gb_s", "from_gb_s")
    card = accelerator(**{name: getattr(spec, name) for name in names}, tflops=spec.tflops["other"])
    return HardwareProfile(name="round", nominal=True, source="made up", cpu=host(), accelerators=(card,))


@dataclass
class Timed:
    """A runner on the emulated devices of `hardware`. It records what its steps choose."""

    runner: DecoderRunner
    recorder: RoutingRecorder
    hardware: HardwareProfile
    shape: ModelShape
    clock: Clock

    def run(self, *chunks: Chunk) -> float:
        """Milliseconds of a step."""
        plan, before = StepPlan(chunks), self.clock.now
        self.runner.execute(plan)
        self.recorder.record(plan)
        return 1e3 * (self.clock.now - before)

    def decode(self, streams: int, steps: int, start: int = 16) -> tuple[float, Traffic]:
        """Mean milliseconds of a step, and the traffic that it was. Tokens are random. One more step before them is not
        counted, nor what it chose: there launches are captured."""
        rng, total = np.random.default_rng(streams), 0.0
        for step in range(-1, steps):
            chunks = [
                Chunk(str(n), [int(rng.integers(VOCAB_SIZE))], start + step, lane(n, start + step + 1), True)
                for n in range(streams)
            ]
            if step < 0:
                self.runner.execute(StepPlan(tuple(chunks)))
            else:
                total += self.run(*chunks)
        return total / steps, Traffic(streams=streams, context=round(start + (steps - 1) / 2))

    def prefill(self, prompt: int, chunk: int, seed: int = 0) -> tuple[float, Traffic]:
        """Milliseconds of a prompt, and the traffic that it was."""
        tokens, total = np.random.default_rng(seed).integers(0, VOCAB_SIZE, prompt).tolist(), 0.0
        for start in range(0, prompt, chunk):
            part = tokens[start : start + chunk]
            end = start + len(part)
            total += self.run(Chunk("a", part, start, lane(0, end), end == prompt))
        return total, Traffic(prompt=prompt, chunk=chunk)

    def predicted(self, trace: RoutingTrace | None = None) -> CostModel:
        """By what was recorded, or by another trace."""
        return CostModel(self.shape, self.hardware, trace or self.recorder.take())


def lane(number: int, length: int) -> tuple[int, ...]:
    """Blocks of a sequence of so many positions."""
    return tuple(8 * number + block for block in range(-(-length // 16)))


@contextmanager
def timed(
    model: Model,
    placement: Placement,
    cards: Sequence[dict[str, float]] = ({},),
    cpu_times: dict[str, float] | None = None,
    *,
    streaming: bool = False,
    late: int | None = None,
    **limits: Any,
) -> Iterator[Timed]:
    """cards: what of CARD is different for each; cpu_times: of `host`; late: a seed, see `Emulated`; limits: of the
    runner."""
    clock = Clock()
    given = [CARD | changes for changes in cards]
    devices = [
        Emulated(
            Spec(vram_bytes=GIB, number=n, tflops={"other": TFLOPS}, **one),  # type: ignore[arg-type]
            clock=clock,
            late=None if late is None else Random(late + n),
        )
        for n, one in enumerate(given)
    ]
    hardware = HardwareProfile(
        name="round",
        nominal=True,
        source="made up",
        cpu=host(**(cpu_times or {})),
        accelerators=tuple(accelerator(tflops=TFLOPS, **one) for one in given),
    )
    shape = shape_of(model, "f32")
    machine = Machine(hardware, shape) if streaming else None
    with hybrid(model, placement, devices, cost=HostCost(shape, hardware.cpu), streaming=machine, **limits) as runner:
        for device in devices:
            device.synchronise()  # until all weights are there
        yield Timed(runner, RoutingRecorder(model, runner), hardware, shape, clock)
