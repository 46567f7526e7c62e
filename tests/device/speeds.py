"""A decoder with random weights, run with its parts in several places: what is timed, and what was predicted."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from isotherm.cpu_kernels.layout import KV_BLOCK
from isotherm.cpu_kernels.seating import Seating
from isotherm.daemon.choices import StepRows
from isotherm.daemon.runner import DecoderRunner
from isotherm.daemon.step import Chunk, StepPlan
from isotherm.experts.acceleration import Acceleration
from isotherm.experts.host_cost import HostCost
from isotherm.experts.kv_store import KvStore
from isotherm.experts.pack import PackedWeights
from isotherm.experts.random_decoder import random_decoder, random_shape
from isotherm.experts.spec import ModelSpec
from isotherm.experts.step_inputs import StepLimits
from isotherm.gpu_kernels.device import Accelerator
from isotherm.gpu_kernels.kernels import Kernels
from isotherm.placement.cost import CostModel
from isotherm.placement.hardware import HardwareProfile
from isotherm.placement.machine import Machine
from isotherm.placement.placed import Placement, Traffic
from isotherm.placement.shape import CPU, ModelShape
from isotherm.placement.trace_builder import TraceBuilder

KIND, KV = "q4", "int16"
CONTEXT = 1024


@dataclass(frozen=True, slots=True)
class Way:
    """Where parts lie: dense ones, and a share of the experts of each layer, on the accelerator. streams: experts are
    streamed for prompts."""

    name: str
    dense: bool
    share: float
    streams: bool = False

    def placement(self, spec: ModelSpec) -> Placement:
        device = 0 if self.dense else CPU
        where = np.full(spec.routing.num_experts if spec.routing else 0, CPU, np.int8)
        where[: round(self.share * len(where))] = 0
        layers = spec.num_layers
        return Placement(dense=(device,) * layers, experts=(where,) * layers, embed=device, head=device)


WAYS = (
    Way("CPU only", dense=False, share=0.0),
    Way("half the experts on the card", dense=False, share=0.5),
    Way("all but half the experts on the card", dense=True, share=0.5),
    Way("the same, experts streamed for prompts", dense=True, share=0.5, streams=True),
    Way("card only", dense=True, share=1.0),
)


@dataclass(frozen=True, slots=True)
class Bench:
    """hardware: the machine's profile, None if there is none. Predictions know what the timed steps chose."""

    spec: ModelSpec
    weights: PackedWeights
    shape: ModelShape
    accelerator: Accelerator
    kernels: Kernels
    seating: Seating
    hardware: HardwareProfile | None
    modelled: bool
    builders: list[TraceBuilder] = field(default_factory=list)  # of what the steps of each runner chose

    @classmethod
    def of(
        cls, spec: ModelSpec, accelerator: Accelerator, kernels: Kernels, threads: int, hardware: HardwareProfile | None
    ) -> "Bench":
        seating = Seating.of(threads)
        weights, shape = random_decoder(spec, KIND, seating), random_shape(spec, KIND, KV)
        modelled = accelerator.name.startswith("emulated")
        return cls(spec, weights, shape, accelerator, kernels, seating, hardware, modelled)

    @contextmanager
    def runner(self, way: Way, tokens: int) -> Iterator[DecoderRunner]:
        """tokens: of the largest step."""
        acceleration = Acceleration(
            accelerators=(self.accelerator,),
            kernels=(self.kernels,),
            placement=way.placement(self.spec),
            cost=HostCost(self.shape, self.hardware.cpu) if self.hardware and self.modelled else None,
            streaming=Machine(self.hardware, self.shape) if self.hardware and way.streams else None,
        )
        blocks = 8 * CONTEXT // KV_BLOCK
        limits = StepLimits(tokens, 8, CONTEXT // KV_BLOCK)
        cache = KvStore(self.spec, blocks, KV)
        routing = self.spec.routing
        assert routing is not None
        layers = tuple(range(self.spec.num_layers))
        self.builders.append(TraceBuilder("", layers, routing.num_experts, routing.top_k))
        runner = DecoderRunner(self.spec, self.weights, cache, limits, blocks, self.seating, acceleration)
        try:
            yield runner
        finally:
            runner.close()

    def decode_rate(self, runner: DecoderRunner, streams: int, steps: int, start: int = 64) -> float:
        """Tokens a second; the first step is not counted."""
        rng, times = np.random.default_rng(streams), []
        for step in range(steps + 1):
            chunks = [
                Chunk(str(n), [int(rng.integers(self.spec.vocab_size))], start + step, _lane(n, start + step + 1), True)
                for n in range(streams)
            ]
            times.append(self._seconds(runner, chunks))
        return streams / float(np.median(times[1:]))

    def prefill_rate(self, runner: DecoderRunner, prompt: int, repeats: int) -> float:
        """Tokens a second of one step; the first repeat is not counted."""
        tokens = np.random.default_rng(prompt).integers(0, self.spec.vocab_size, prompt).tolist()
        chunk = Chunk("0", tokens, 0, _lane(0, prompt), True)
        times = [self._seconds(runner, [chunk]) for _ in range(repeats + 1)]
        return prompt / float(np.median(times[1:]))

    def predicted(self, way: Way, traffic: Traffic) -> tuple[float, float] | None:
        """Tokens a second of decode and of prefill, by the cost model and what the last runner chose."""
        if self.hardware is None:
            return None
        cost, placement = CostModel(self.shape, self.hardware, self.builders[-1].trace()), way.placement(self.spec)
        return cost.decode(placement, traffic).value, cost.prefill(placement, traffic, staging=way.streams).value

    def _seconds(self, runner: DecoderRunner, chunks: Sequence[Chunk]) -> float:
        before = self.accelerator.now()
        runner.execute(StepPlan(tuple(chunks)))
        seconds = self.accelerator.now() - before
        choices, rows = runner.choices(), StepRows.of(chunks)
        assert choices is not None
        if len(rows.decode):
            owners = np.array([int(chunk.request_id) for chunk in chunks], np.int64)
            self.builders[-1].add_decode(*choices.decode(rows), owners)
        else:
            self.builders[-1].add_prefill(*choices.prefill(rows))
        return seconds


def _lane(number: int, length: int) -> tuple[int, ...]:
    """Blocks of a sequence of so many positions."""
    first = number * (CONTEXT // KV_BLOCK)
    return tuple(range(first, first - (-length // KV_BLOCK)))
