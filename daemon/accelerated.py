"""Accelerated: the accelerators that a daemon serves with, and the plan of what lies on them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..experts.acceleration import Acceleration, Note
from ..experts.host_cost import HostCost
from ..experts.hybrid_executor import HybridExecutor
from ..experts.outline import outline
from ..experts.progress import Progress
from ..gpu_kernels.device import Accelerator, DeviceError
from ..gpu_kernels.device_spec import Spec
from ..gpu_kernels.devices import kernels_for, open_devices, parse_device
from ..gpu_kernels.sizes import size_text
from ..placement.cost import CostModel
from ..placement.hardware import HardwareProfile
from ..placement.ledger import RAM, device_name, kv_staging_bytes
from ..placement.plan import Plan
from ..placement.room import CardTooSmallError, FitError
from ..placement.shape import CPU, ModelShape
from .accelerator_keeper import AcceleratorKeeper
from .calibrate import kept_profile
from .config import Config, ConfigError
from .events import EventLog
from .machine import default_threads, free_memory
from .memory import GIB, MemoryPlanError
from .named_accelerators import last_card, measured_for, with_named
from .planning import PlanOptions, case_on, drafted
from .rebalanced import Rebalanced
from .runner import DecoderRunner


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerated:
    """devices: known by their number, "gpu0" is the first. cost: what the plan's numbers come from; None where it was
    made elsewhere, and nothing is known of this machine. modelled: one of them goes by a modelled clock, on which the
    CPU takes as long as it is foretold. rebalanced: what lets experts follow the traffic. kv_blocks: of the KV cache,
    for how many each has room in the layers whose attention it runs."""

    devices: tuple[Accelerator, ...]
    modelled: bool
    plan: Plan
    cost: CostModel | None
    rebalanced: Rebalanced
    kv_blocks: int

    @property
    def attending(self) -> tuple[int, ...]:
        """Layers whose attention accelerators run."""
        return tuple(layer for layer, device in enumerate(self.plan.placement.dense) if device != CPU)

    def acceleration(self, note: Note) -> Acceleration:
        """note: is told what has to be given up."""
        return Acceleration(
            accelerators=self.devices,
            kernels=[kernels_for(device, note) for device in self.devices],
            placement=self.rebalanced.placement,
            note=note,
            cost=HostCost(self.cost.shape, self.cost.hardware.cpu) if self.cost and self.modelled else None,
            streaming=self.cost.machine if self.cost and _is_staged(self.plan) else None,
            free_memory=free_memory,
            kv_blocks=[self.kv_blocks] * len(self.devices),
        )

    def keeper(self, runner: DecoderRunner, events: EventLog, least_free: int) -> AcceleratorKeeper:
        """Of a runner that was made with `acceleration`. least_free: see `AcceleratorKeeper`."""
        assert isinstance(runner.executor, HybridExecutor)
        return AcceleratorKeeper(runner, runner.executor, self.plan, events, least_free)


def accelerate(config: Config, path: Path, plan: Plan | None, events: EventLog, progress: Progress) -> Accelerated:
    """Open the accelerators of a config, for the model at `path`. plan: that it is to be served by; else one is made.

    Raises ConfigError for an accelerator that is not there, MemoryPlanError where the plan needs more than they have,
    and what `planning.case_on` and `planning.drafted` do.
    """
    devices = _opened(config.accelerators)
    shape = outline(path, config.kv_cache if plan is None else plan.kv_kind)
    cost: CostModel | None
    if plan is None:
        plan, cost = _planned(config, path, shape, devices, progress)
    else:
        cost = _known_cost(config, shape, devices)
    block_bytes = shape.kv_bytes * shape.kv_block
    _check_room(plan, devices, kv_staging_bytes(block_bytes) if config.kv_offload_gib else 0)
    if cost is None and _is_staged(plan):
        detail = "from how many tokens on bringing experts to accelerators pays is not known; measure it by: "
        events.record("prefill_not_streamed", f"{detail}isotherm calibrate")
    if any(layer.slots for layer in plan.layers):
        detail = f"the plan's policy is {plan.policy}; experts stay where it puts them until they are rebalanced"
        events.record("slots_are_static", detail)
    modelled = any(isinstance(parse_device(name), Spec) for name in config.accelerators)
    rebalanced = Rebalanced(plan, cost, [device.name for device in devices], events)
    kv_blocks = sum(account.of("KV cache") for account in plan.ledger) // block_bytes
    made = Accelerated(
        devices=devices, modelled=modelled, plan=plan, cost=cost, rebalanced=rebalanced, kv_blocks=kv_blocks
    )
    if config.kv_offload_gib and not made.attending:
        detail = "no layer's attention runs on an accelerator, so all of the KV cache is in RAM, and used there"
        events.record("kv_not_offloaded", detail)
    return made


def _opened(names: Sequence[str]) -> tuple[Accelerator, ...]:
    torch.set_num_threads(1)  # what it does on the CPU for emulated devices must not take cores from the engine
    try:
        return open_devices(names)
    except (ValueError, DeviceError) as error:
        raise ConfigError(f"--accelerator: {error}") from error


def _planned(
    config: Config, path: Path, shape: ModelShape, devices: Sequence[Accelerator], progress: Progress
) -> tuple[Plan, CostModel]:
    measured = measured_for(config.accelerators, shape.kinds, config.threads, progress)
    hardware = _hardware(measured, config.accelerators, devices)
    options = PlanOptions(model=path, context=config.context, kv_cache=config.kv_cache)
    case = case_on(options, shape, hardware, free_memory(), disk=False)
    wish = replace(case.wish, rows=config.max_running, kv_offload=int((config.kv_offload_gib or 0) * GIB))
    if config.kv_gib is not None:
        blocks = int(config.kv_gib * GIB) // (shape.kv_bytes * shape.kv_block)
        wish = replace(wish, positions=max(blocks, 1) * shape.kv_block)
    try:
        return drafted(replace(case, wish=wish), options, formats=())  # the weights are as they are
    except CardTooSmallError as error:
        raise FitError(f"{error.reason}; {_room_for(config.accelerators[error.device])}") from error


def _room_for(name: str) -> str:
    """How an accelerator that `serve` was told to use gets more room."""
    emulated = isinstance(parse_device(name), Spec)
    more = "give it more by its vram=" if emulated else "free what other programs have of it"
    return f"{more}, or leave out --accelerator {name}"


def _known_cost(config: Config, shape: ModelShape, devices: Sequence[Accelerator]) -> CostModel | None:
    """By what was once measured of this machine, if that is enough."""
    measured = kept_profile(config.threads or default_threads())
    if measured is None or not set(shape.kinds) <= set(measured.cpu.products):
        return None
    if len(measured.accelerators) <= last_card(config.accelerators):
        return None
    return CostModel(shape, _hardware(measured, config.accelerators, devices))


def _hardware(measured: HardwareProfile, names: Sequence[str], devices: Sequence[Accelerator]) -> HardwareProfile:
    """This machine with the accelerators that are named, and what is free of each."""
    machine = with_named(measured, names)
    profiles = [
        replace(profile, free_bytes=device.limit_bytes)
        for profile, device in zip(machine.accelerators, devices, strict=True)
    ]
    return replace(machine, accelerators=tuple(profiles))


def _is_staged(plan: Plan) -> bool:
    """Whether experts of the CPU are to be brought to accelerators for the time of a large step."""
    return any(account.of("prefill staging") for account in plan.ledger)


def _check_room(plan: Plan, devices: Sequence[Accelerator], kv_staging: int) -> None:
    """kv_staging: what offloading takes of each, which a plan from a file does not know of."""
    accounts = {account.device: account for account in plan.ledger if account.device != RAM}
    for number, device in enumerate(devices):
        account = accounts.get(device_name(number))
        if account is None:
            continue
        total = account.total + max(kv_staging - account.of("KV staging"), 0)
        if total > device.limit_bytes:
            size = math.floor(100 * device.limit_bytes / GIB) / 100  # rounded up, it would be refused again
            raise MemoryPlanError(
                f"the plan takes {size_text(total)} of {account.device}, and {device.name} has "
                f"{size_text(device.limit_bytes)}; make one by: isotherm plan --vram "
                f"{account.device}={size:.2f}GiB, or leave --plan out"
            )
