"""Models that run on a CPU with emulated accelerators: where their parts lie, and runners that move them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import numpy as np
import torch
from isotherm.daemon.runner import DecoderRunner, load_runner
from isotherm.daemon.step import StepPlan
from isotherm.experts.acceleration import Acceleration, Note
from isotherm.experts.host_cost import HostCost
from isotherm.experts.hybrid_executor import HybridExecutor
from isotherm.experts.model import Model
from isotherm.experts.residency import Residency
from isotherm.experts.spec import ModelSpec
from isotherm.gpu_kernels.clock import Clock
from isotherm.gpu_kernels.device import Accelerator
from isotherm.gpu_kernels.device_spec import Spec
from isotherm.gpu_kernels.emulated import Emulated
from isotherm.gpu_kernels.kernels import Kernels
from isotherm.gpu_kernels.reference import TorchKernels
from isotherm.placement.machine import Machine
from isotherm.placement.placed import Placement
from isotherm.placement.rebalance import Swap
from isotherm.placement.shape import CPU
from numpy.typing import NDArray

LIMITS: dict[str, Any] = {
    "threads": 2,
    "num_blocks": 64,
    "max_context": 128,
    "max_step_tokens": 64,
    "max_running": 8,
    "kv_cache": "f32",
}


def emulated(*vram: int, late: int | None = None) -> tuple[Emulated, ...]:
    """Accelerators of one host, by their bytes of memory. late: a seed for the order in which they do their work."""
    clock = Clock()
    return tuple(
        Emulated(
            Spec(vram_bytes=nbytes, number=number), clock=clock, late=None if late is None else Random(late + number)
        )
        for number, nbytes in enumerate(vram)
    )


def placed(spec: ModelSpec, experts: Sequence[NDArray[np.int8]], dense: Sequence[int] = ()) -> Placement:
    """dense: devices of the embedding, of each layer and of the head; the CPU if it is not given."""
    embed, *layers, head = dense or (CPU,) * (spec.num_layers + 2)
    return Placement(dense=tuple(layers), experts=tuple(experts), embed=embed, head=head)


def random_placement(
    spec: ModelSpec, shares: Sequence[float], seed: int, *, dense: Sequence[int] = (), anywhere: bool = False
) -> Placement:
    """Of the experts of each layer, such a share on each accelerator and the rest on the CPU. dense: as of `placed`;
    anywhere: dense parts on any device too."""
    rng, experts = np.random.default_rng(seed), []
    if anywhere:
        dense = [int(device) for device in rng.integers(CPU, len(shares), spec.num_layers + 2)]
    for is_moe in spec.moe_layers:
        size = spec.routing.num_experts if is_moe and spec.routing else 0
        where = np.full(size, CPU, np.int8)
        order, first = rng.permutation(size), 0
        for device, share in enumerate(shares):
            last = first + round(share * size)
            where[order[first:last]] = device
            first = last
        experts.append(where)
    return placed(spec, experts, dense)


@contextmanager
def hybrid(
    model: Model,
    placement: Placement,
    accelerators: Sequence[Accelerator],
    *,
    kernels: Sequence[Kernels] | None = None,
    cost: HostCost | None = None,
    streaming: Machine | None = None,
    note: Note | None = None,
    kv_blocks: Sequence[int] | None = None,
    **limits: Any,
) -> Iterator[DecoderRunner]:
    """A runner whose memory on accelerators is given back, which is checked. Torch has one thread meanwhile: the ops
    of tiny models lose time by more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    acceleration = Acceleration(
        accelerators=accelerators,
        kernels=kernels or [TorchKernels() for _ in accelerators],
        placement=placement,
        cost=cost,
        streaming=streaming,
        note=note,
        kv_blocks=kv_blocks,
    )
    try:
        runner = load_runner(model, acceleration=acceleration, **LIMITS | limits)
        try:
            yield runner
            residency_of(runner).settle(wait=True)
            residency_of(runner).check_integrity()
        finally:
            runner.close()
    finally:
        torch.set_num_threads(threads)
    assert [accelerator.used_bytes for accelerator in accelerators] == [0] * len(accelerators)


def residency_of(runner: DecoderRunner) -> Residency:
    assert isinstance(runner.executor, HybridExecutor)
    return runner.executor.residency


def swap(layer: int, device: int, promoted: int, demoted: int) -> Swap:
    """Numbers that only the rebalancer needs are left out."""
    zeros = dict.fromkeys(("promoted_rate", "demoted_rate", "horizon", "saving_ms", "transfer_ms"), 0.0)
    return Swap(layer=layer, device=device, promoted=promoted, demoted=demoted, nbytes=0, **zeros)


class Restless:
    """A runner that begins swaps before each step, one in each layer that can have one."""

    def __init__(self, runner: DecoderRunner, seed: int, *, wait: bool) -> None:
        self._runner, self._rng, self._wait = runner, np.random.default_rng(seed), wait
        self.choices = runner.choices
        self.block_size, self.max_context = runner.block_size, runner.max_context
        self.swaps = 0

    def execute(self, plan: StepPlan) -> NDArray[np.float32]:
        residency = residency_of(self._runner)
        self.swaps += swap_everywhere(residency, self._rng)
        if self._wait:
            residency.settle(wait=True)
        return self._runner.execute(plan)


def swap_everywhere(residency: Residency, rng: np.random.Generator) -> int:
    """Begin a swap in each layer that can have one, after those before have arrived; how many."""
    residency.settle(wait=True)
    swaps = 0
    for layer, where in enumerate(residency.where):
        cold, hot = np.flatnonzero(where == CPU), np.flatnonzero(where != CPU)
        if len(cold) and len(hot):
            promoted, demoted = (int(rng.choice(those)) for those in (cold, hot))
            residency.swap([swap(layer, int(where[demoted]), promoted, demoted)])
            swaps += 1
    return swaps
