"""Accelerators by the names that `--accelerator` takes: what is known of each before it is opened."""

from collections.abc import Sequence
from dataclasses import replace

from ..experts.progress import Progress
from ..gpu_kernels.device import DeviceError
from ..gpu_kernels.device_spec import Spec
from ..gpu_kernels.devices import check_names, parse_device
from ..placement.hardware import AcceleratorProfile, Estimate, HardwareProfile
from .calibrate import calibrate, this_machine
from .config import ConfigError
from .machine import default_threads


def measured_for(
    names: Sequence[str], kinds: Sequence[str], threads: int | None, progress: Progress
) -> HardwareProfile:
    """This machine, measured again if it is not known to have the cards that are named. Raises as `with_named`."""
    threads = threads or default_threads()
    measured = this_machine(kinds, threads, progress)
    if len(measured.accelerators) <= last_card(names):  # it was put in since
        measured = calibrate(kinds, threads, progress)
    return measured


def with_named(machine: HardwareProfile, names: Sequence[str]) -> HardwareProfile:
    """A machine with the accelerators that are named, in that order, in place of its own. Raises ConfigError for what
    names none, or one that it has not."""
    parsed, count = _parsed(names), len(machine.accelerators)
    if last_card(names) >= count:
        has = f"{count} card{'' if count == 1 else 's'}" if count else "no card"
        raise ConfigError(f"--accelerator names cuda:{last_card(names)}, and {machine.name} has {has}")
    profiles = tuple(machine.accelerators[what] if isinstance(what, int) else profile_of(what) for what in parsed)
    return replace(machine, accelerators=profiles)


def last_card(names: Sequence[str]) -> int:
    """The highest number of a card among them; -1 for none."""
    return max((what for what in _parsed(names) if isinstance(what, int)), default=-1)


def _parsed(names: Sequence[str]) -> list[Spec | int]:
    try:
        parsed = [parse_device(name) for name in names]
        check_names([f"cuda:{what}" if isinstance(what, int) else what.name for what in parsed])
    except (ValueError, DeviceError) as error:
        raise ConfigError(f"--accelerator: {error}") from error
    return parsed


def profile_of(spec: Spec) -> AcceleratorProfile:
    """Of an emulated accelerator: what its clock goes by, without any spread."""
    return AcceleratorProfile(
        name=spec.name,
        vram_bytes=spec.vram_bytes,
        free_bytes=spec.vram_bytes,
        read_gb_s=Estimate(spec.read_gb_s),
        tflops={kind: Estimate(tflops) for kind, tflops in spec.tflops.items()},
        launch_us=Estimate(spec.launch_us),
        hop_us=Estimate(spec.hop_us),
        to_gb_s=Estimate(spec.to_gb_s),
        from_gb_s=Estimate(spec.from_gb_s),
        to_unpinned_gb_s=Estimate(spec.to_gb_s),
        from_unpinned_gb_s=Estimate(spec.from_gb_s),
    )
