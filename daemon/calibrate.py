"""What `isotherm calibrate` measures: this machine, with the kernels that serve. What was measured is kept."""

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from statistics import median

import psutil

from .. import __version__
from ..cpu_kernels.features import host_tier
from ..cpu_kernels.seating import Seating
from ..cpu_kernels.topology import read_topology
from ..experts.formats import FORMATS
from ..experts.progress import Progress
from ..gpu_kernels.measure import CardSamples, measure_cards
from ..placement.fit import estimate
from ..placement.hardware import AcceleratorProfile, CpuProfile, HardwareProfile
from ..placement.hardware_file import HardwareError, load_profile, save_profile
from .calibrate_rounds import take_rounds
from .calibrate_terms import Machine, cpu_profile
from .machine import cpu_name, default_threads, free_memory
from .paths import hardware_file

logger = logging.getLogger(__name__)

_BUSY = " while other programs ran; calibrate again when the machine is quiet"
_CALM = 0.1  # spread of products in cache on a quiet machine; it was 0.01 to 0.05

COMMON_KINDS = tuple(dict.fromkeys(("q4", *(row.packed for row in FORMATS.values()))))


def this_machine(kinds: Collection[str], threads: int | None, progress: Progress) -> HardwareProfile:
    """The kept profile of this machine, with at least these packed kinds; where there is none that fits, it is
    measured, which takes a minute, and kept. threads: None is what `serve` takes.

    Raises MemoryPlanError.
    """
    threads = threads or default_threads()
    kept = kept_profile(threads)
    if kept is not None and set(kinds) <= set(kept.cpu.products):
        return kept
    known = [] if kept is None else [kind for kind in kept.cpu.products if kind not in kinds]
    return calibrate((*kinds, *known), threads, progress)


def calibrate(kinds: Sequence[str], threads: int, progress: Progress) -> HardwareProfile:
    """Measure this machine and keep the profile. Raises MemoryPlanError."""
    rounds, shapes = take_rounds(kinds, Seating(threads, read_topology()), progress)
    machine = _machine(threads)
    cpu = cpu_profile(machine, rounds, shapes)
    profile = HardwareProfile(
        name=machine.name,
        nominal=False,
        source=f"measured in {len(rounds)} rounds" + (_BUSY if _disturbed(cpu) else ""),
        cpu=cpu,
        accelerators=tuple(map(_accelerator, measure_cards())),
        isotherm_version=__version__,
    )
    path = hardware_file(threads)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_profile(profile, path)
    except OSError as error:
        logger.warning("%s: %s; the machine is measured again when it is needed", path, error)
    return profile


def kept_profile(threads: int) -> HardwareProfile | None:
    """What was kept of this machine with so many threads, with the memory that is free now; None if there is nothing,
    or if the CPU, its instructions or this program have changed since."""
    path, machine = hardware_file(threads), _machine(threads)
    if not path.exists():
        return None
    try:
        profile = load_profile(path)
    except HardwareError as error:
        logger.warning("%s; the machine is measured again", error)
        return None
    cpu = profile.cpu
    if (cpu.name, cpu.tier, cpu.threads, cpu.cores, profile.isotherm_version) != (
        machine.name, machine.tier, threads, machine.cores, __version__,
    ):  # fmt: skip
        logger.info("%s: of another machine or version; the machine is measured again", path)
        return None
    return replace(profile, cpu=replace(cpu, ram_bytes=machine.ram_bytes, free_bytes=machine.free_bytes))


def _disturbed(cpu: CpuProfile) -> bool:
    """Products in cache take the same time again and again, unless other programs take processors away."""
    spreads = [block.spread for cost in cpu.products.values() for block in cost.block_ns_per_kib]
    return median(spreads) > _CALM


def _machine(threads: int) -> Machine:
    return Machine(
        name=cpu_name(),
        tier=host_tier().name,
        threads=threads,
        cores=max(1, len(read_topology().cores)),
        ram_bytes=int(psutil.virtual_memory().total),
        free_bytes=free_memory(),
    )


def _accelerator(card: CardSamples) -> AcceleratorProfile:
    return AcceleratorProfile(
        name=card.name,
        vram_bytes=card.vram_bytes,
        free_bytes=card.free_bytes,
        read_gb_s=estimate(card.read_gb_s),
        tflops={"other": estimate(card.tflops)},
        launch_us=estimate(card.launch_us),
        hop_us=estimate(card.hop_us),
        to_gb_s=estimate(card.to_gb_s),
        from_gb_s=estimate(card.from_gb_s),
        to_unpinned_gb_s=estimate(card.to_unpinned_gb_s),
        from_unpinned_gb_s=estimate(card.from_unpinned_gb_s),
    )
