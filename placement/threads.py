"""A hardware profile as it would be with another number of threads."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from .hardware import CpuProfile, Estimate, HardwareProfile, ProductCost

_UNSURE = 0.1  # spread of what is scaled and was not measured


def with_threads(hardware: HardwareProfile, threads: int) -> HardwareProfile:
    """Reading goes by the profile's curve of plain reads, computing by the number of threads.

    Raises ValueError for more threads than the curve has.
    """
    cpu = hardware.cpu
    if threads == cpu.threads:
        return hardware
    most = max(cpu.read_gb_s)
    if not 1 <= threads <= most:
        raise ValueError(f"{hardware.name} is known with 1 to {most} threads, not with {threads}; name fewer")
    reading = _read_gb_s(cpu, threads) / _read_gb_s(cpu, cpu.threads)
    computing = threads / cpu.threads
    scaled = replace(
        cpu,
        threads=threads,
        products={kind: _product(cost, reading, computing) for kind, cost in cpu.products.items()},
        token_ns_per_value=_times(cpu.token_ns_per_value, 1 / computing),
        kv_gb_s=_all_times(cpu.kv_gb_s, reading),
        attention_gops=_all_times(cpu.attention_gops, computing),
    )
    return replace(hardware, cpu=scaled)


def _read_gb_s(cpu: CpuProfile, threads: int) -> float:
    """Between two numbers of threads that were measured it lies between their rates."""
    known = sorted(cpu.read_gb_s)
    return float(np.interp(threads, known, [cpu.read_gb_s[number].value for number in known]))


def _product(cost: ProductCost, reading: float, computing: float) -> ProductCost:
    return replace(
        cost,
        read_gb_s=_times(cost.read_gb_s, reading),
        block_ns_per_kib=tuple(_times(block, 1 / computing) for block in cost.block_ns_per_kib),
    )


def _all_times(estimates: Mapping[str, Estimate], factor: float) -> dict[str, Estimate]:
    return {kind: _times(estimate, factor) for kind, estimate in estimates.items()}


def _times(estimate: Estimate, factor: float) -> Estimate:
    return Estimate(estimate.value * factor, float(np.hypot(estimate.spread, _UNSURE)))
