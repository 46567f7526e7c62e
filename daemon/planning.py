"""How `isotherm plan` comes to a plan: the model's sizes, this machine or another, and what is known of its traffic."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..cpu_kernels.kv_layout import KvCache
from ..experts.checkpoint import open_checkpoint
from ..experts.errors import ModelError
from ..experts.formats import FORMATS
from ..experts.outline import outline
from ..experts.progress import Progress
from ..experts.step_inputs import LEAST_ROWS
from ..placement.cost import CostModel
from ..placement.draft import Wish, draft, model_of
from ..placement.hardware import HardwareProfile
from ..placement.hardware_catalogue import find_profile
from ..placement.ledger import kv_positions
from ..placement.placed import Traffic
from ..placement.plan import Plan
from ..placement.room import Alternative
from ..placement.shape import ModelShape
from ..placement.trace import RoutingTrace, TraceError
from ..placement.trace_file import load_trace
from .calibrate import this_machine
from .config import Config, ConfigError
from .machine import free_memory
from .memory import RESERVE, MemoryPlanError, demand_of, plan_blocks
from .paths import routing_file

_DEFAULT = Config()
_OTHER_FORMATS = ("Q8_0", "Q4_0")  # that are offered where a model does not fit
_MOST_STREAMS = 512
NEUTRAL = "none: every expert as likely as any other"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What `isotherm plan` was told. vram: bytes by the number of an accelerator, else all that is free of each.

    context: tokens of prompt and answer together, which decode is then predicted at the end of; None is what `serve`
    takes, with decode predicted for a short text. hardware: a name or a file; None is this machine. accelerators: by
    name, in place of those that it has. trace: a file; None is the model's own, if there is one.
    """

    model: Path
    vram: Mapping[int, int] = field(default_factory=dict)
    context: int | None = None
    streams: int = 1
    hardware: str | None = None
    accelerators: tuple[str, ...] = ()
    trace: Path | None = None
    kv_cache: KvCache = _DEFAULT.kv_cache
    weight_format: str | None = None

    def __post_init__(self) -> None:
        Config(context=self.context, kv_cache=self.kv_cache)  # in its words where they are wrong
        if self.weight_format is not None and self.weight_format not in FORMATS:
            known = ", ".join(name.lower() for name in FORMATS)
            raise ConfigError(f"--format is {self.weight_format.lower()!r}; choose from {known}")
        if not 1 <= self.streams <= _MOST_STREAMS:
            raise ConfigError(f"--streams is {self.streams}; it must lie between 1 and {_MOST_STREAMS}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a plan is made from. trace_name: what the trace is, in words."""

    shape: ModelShape
    hardware: HardwareProfile
    trace: RoutingTrace | None
    trace_name: str
    wish: Wish


def make_plan(options: PlanOptions, progress: Progress) -> Plan:
    """Where the model should lie and how fast it will be. No weight is read.

    Raises what `case_of` does, and FitError where the model does not fit.
    """
    return drafted(case_of(options, progress), options)[0]


def drafted(case: Case, options: PlanOptions, formats: Sequence[str] = _OTHER_FORMATS) -> tuple[Plan, CostModel]:
    """The plan of a case, and what it was predicted by. formats: of weights that may be proposed by --format. Raises
    FitError where the model does not fit."""
    cost = model_of(case.shape, case.hardware, case.trace, disk=case.wish.disk)
    plan = draft(cost, case.wish, trace_name=case.trace_name, alternatives=lambda: _alternatives(options, formats))
    return plan, cost


def case_of(options: PlanOptions, progress: Progress) -> Case:
    """What the options ask for, read and looked up.

    Raises ModelError, HardwareError, TraceError and ConfigError for what cannot be used, MemoryPlanError where the
    model does not fit into the RAM of a machine without accelerators.
    """
    shape = outline(options.model, options.kv_cache, options.weight_format)
    hardware = _hardware(options, shape, progress)
    if options.hardware is None:  # here no weights are served from disk
        return case_on(options, shape, hardware, free_memory(), disk=False)
    return case_on(options, shape, hardware, hardware.cpu.free_bytes, disk=hardware.ssd_read_gb_s.value > 0)


def _hardware(options: PlanOptions, shape: ModelShape, progress: Progress) -> HardwareProfile:
    if not options.accelerators:
        known = options.hardware
        return find_profile(known) if known else this_machine(shape.kinds, None, progress)
    from .named_accelerators import measured_for, with_named  # it imports torch

    if options.hardware is not None:
        return with_named(find_profile(options.hardware), options.accelerators)
    return with_named(measured_for(options.accelerators, shape.kinds, None, progress), options.accelerators)


def case_on(options: PlanOptions, shape: ModelShape, hardware: HardwareProfile, ram: int, *, disk: bool) -> Case:
    """As `case_of`, on a machine of which `ram` bytes may be used. disk: whether experts may stay there."""
    context = _context(shape, options)
    trace, trace_name = _trace(shape, options)
    wish = _wish(shape, options, context, ram, _vram(hardware, options), disk)
    return Case(shape=shape, hardware=hardware, trace=trace, trace_name=trace_name, wish=wish)


def _wish(shape: ModelShape, options: PlanOptions, context: int, ram: int, vram: Sequence[int], disk: bool) -> Wish:
    positions = kv_positions(shape, options.streams, context)
    if not any(vram):
        try:
            positions = max(positions, plan_blocks(demand_of(shape, context), ram) * shape.kv_block)
        except MemoryPlanError:
            if not disk:
                raise
    filled = Traffic().context if options.context is None else context
    prompt = min(Traffic().prompt, context)
    return Wish(
        traffic=Traffic(
            streams=options.streams, context=min(filled, context), prompt=prompt, chunk=_DEFAULT.max_step_tokens
        ),
        context=context,
        positions=positions,
        ram=ram,
        vram=tuple(vram),
        runtime=RESERVE,
        rows=max(_DEFAULT.max_running, options.streams, LEAST_ROWS),
        disk=disk,
    )


def _context(shape: ModelShape, options: PlanOptions) -> int:
    if options.context is not None and options.context > shape.max_context:
        raise ConfigError(f"--context is {options.context}; this model takes at most {shape.max_context} tokens")
    return options.context or min(shape.max_context, _DEFAULT.max_default_context)


def _vram(hardware: HardwareProfile, options: PlanOptions) -> list[int]:
    count = len(hardware.accelerators)
    for device in options.vram:
        if device >= count:
            has = f"has {count} accelerator{'' if count == 1 else 's'}" if count else "has no accelerator"
            raise ConfigError(
                f"--vram names gpu{device}, but {hardware.name} {has}; name another machine by --hardware, "
                "`isotherm calibrate --list` shows those that are known"
            )
    for device, size in options.vram.items():
        if size > hardware.accelerators[device].vram_bytes:
            whole = hardware.accelerators[device].vram_bytes / 2**30
            raise ConfigError(f"--vram gives more of gpu{device} than its {whole:.2f} GiB")
    return [options.vram.get(device, card.free_bytes) for device, card in enumerate(hardware.accelerators)]


def _trace(shape: ModelShape, options: PlanOptions) -> tuple[RoutingTrace | None, str]:
    """The trace and what it is, in words."""
    if options.trace is not None:
        trace = load_trace(options.trace, shape.fingerprint if shape.whole else None)
        _check_trace(trace, shape, options.trace)
        return trace, str(options.trace)
    own = _own_trace(shape, options.model)
    if own is None:
        return None, NEUTRAL
    trace = load_trace(own)
    _check_trace(trace, shape, own)
    return trace, "the model's own"


def _own_trace(shape: ModelShape, path: Path) -> Path | None:
    fingerprint = shape.fingerprint
    if not shape.whole:
        try:
            fingerprint = open_checkpoint(path).fingerprint
        except ModelError:  # it was planned from its header, so it has had no traffic
            return None
    file = routing_file(fingerprint)
    return file if file.is_file() else None


def _check_trace(trace: RoutingTrace, shape: ModelShape, file: Path) -> None:
    """A model in another format has another fingerprint, but must have the same experts."""
    layers = [shape.layers[layer] for layer in shape.moe_layers]
    same = {(trace.num_experts, trace.top_k)} == {(layer.num_experts, layer.top_k) for layer in layers}
    if not same or trace.layers != shape.moe_layers:
        raise TraceError(
            f"{file}: a trace of {len(trace.layers)} layers with {trace.num_experts} experts, {trace.top_k} of them "
            f"active, which {shape.name} has not; name a trace of that model"
        )


def _alternatives(options: PlanOptions, formats: Sequence[str]) -> list[Alternative]:
    given = options.weight_format
    others = (
        [] if options.kv_cache == "int8" else [Alternative("--kv-cache int8", outline(options.model, "int8", given))]
    )
    for name in formats:
        others.append(Alternative(f"--format {name.lower()}", outline(options.model, options.kv_cache, name)))
    return others
