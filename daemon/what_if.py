"""What `isotherm simulate` computes: a model on a grid of machines, memory, traffic, formats, threads and policies."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from ..cpu_kernels.kv_layout import KvCache
from ..experts.progress import Progress
from ..placement.hardware import HardwareProfile
from ..placement.placed import Prediction
from ..placement.replay import CacheKind
from ..placement.room import FitError
from ..placement.simulate import Outcome, Simulator
from ..placement.threads import with_threads
from .config import Config, ConfigError
from .memory import MemoryPlanError
from .planning import NEUTRAL, Case, PlanOptions, case_of

GIB = 2**30
MOST_SETTINGS = 400
_PARTS = 4  # into which the memory of a card goes where no sizes are asked for
_DEFAULT = Config()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What to go through. vram: bytes of each accelerator that may be used, empty for quarters of what is free; None as
    hardware is this machine, as context what is served, as format the model's own, as threads the machine's."""

    model: Path
    trace: Path | None = None
    hardware: tuple[str | None, ...] = (None,)
    vram: tuple[int, ...] = ()
    context: tuple[int | None, ...] = (None,)
    streams: tuple[int, ...] = (1,)
    weight_format: tuple[str | None, ...] = (None,)
    threads: tuple[int | None, ...] = (None,)
    policies: tuple[CacheKind, ...] = ("static", "lru", "lfru", "seeded")
    kv_cache: KvCache = _DEFAULT.kv_cache

    def __post_init__(self) -> None:
        settings = self.panels * max(len(self.vram), 1)
        if settings > MOST_SETTINGS:
            raise ConfigError(f"that makes {settings} settings to simulate; name fewer values, at most {MOST_SETTINGS}")

    @property
    def panels(self) -> int:
        """How many settings there are but for VRAM."""
        axes = (self.hardware, self.context, self.streams, self.weight_format, self.threads)
        return math.prod(len(axis) for axis in axes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """vram_gib: of each accelerator; format: empty for the model's own."""

    hardware: str
    vram_gib: float
    context: int
    streams: int
    format: str
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A policy in a setting; without an outcome where the model does not fit, which the note then says."""

    setting: Setting
    policy: CacheKind
    outcome: Outcome | None = None
    note: str = ""

    def flat(self) -> dict[str, str | int | float | None]:
        """For CSV and JSON, with units in the names; None for what is not there."""
        own = self.setting
        return {
            "hardware": own.hardware,
            "vram_gib": own.vram_gib,
            "context": own.context,
            "streams": own.streams,
            "format": own.format or None,
            "threads": own.threads,
            "policy": self.policy,
            **_measures(self.outcome),
            "note": self.note or None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """trace: what was replayed, in words."""

    model: str
    trace: str
    rows: tuple[Row, ...]


def simulate(grid: Grid, progress: Progress) -> Simulated:
    """All rows, in the order of the grid. No weight is read.

    Raises ModelError, HardwareError, TraceError and ConfigError for what cannot be used.
    """
    rows: list[Row] = []
    axes = list(product(grid.hardware, grid.weight_format, grid.context, grid.streams))
    name = trace_name = ""
    for number, (hardware, weight_format, context, streams) in enumerate(axes):
        options = PlanOptions(
            model=grid.model,
            context=context,
            streams=streams,
            hardware=hardware,
            trace=grid.trace,
            kv_cache=grid.kv_cache,
            weight_format=weight_format,
        )
        case = _replayable(case_of(options, progress), grid)
        name, trace_name = case.shape.name, case.trace_name
        try:
            simulator = Simulator(case.shape, case.trace)
            settings = list(product(_machines(case.hardware, grid.threads), _sizes(case.hardware, grid.vram)))
        except ValueError as error:
            raise ConfigError(str(error)) from error
        for place, (machine, size) in enumerate(settings):
            rows += _rows(simulator, replace(case, hardware=machine), size, weight_format or "", grid.policies)
            progress("simulating", number * len(settings) + place + 1, len(axes) * len(settings))
    return Simulated(model=name, trace=trace_name, rows=tuple(rows))


def _replayable(case: Case, grid: Grid) -> Case:
    """As if there were no traffic where it was not asked for and is too little for the most streams of the grid: so all
    rows are of the same."""
    most = max(grid.streams)
    if grid.trace is not None or case.trace is None or len(case.trace.sample) >= 2 * most:
        return case
    tokens = len(case.trace.sample)
    lacking = f"{tokens} decoded tokens, and {most} stream{'s' if most > 1 else ''} would take {2 * most}"
    return replace(case, trace=None, trace_name=f"{NEUTRAL} (the model's own has {lacking})")


def _rows(simulator: Simulator, case: Case, size: int, weight_format: str, policies: Sequence[CacheKind]) -> list[Row]:
    wish = replace(case.wish, vram=(size,) * len(case.hardware.accelerators), disk=False)
    setting = Setting(
        hardware=case.hardware.name,
        vram_gib=size / GIB,
        context=wish.context,
        streams=wish.traffic.streams,
        format=weight_format,
        threads=case.hardware.cpu.threads,
    )
    try:
        found = list(simulator.run(case.hardware, wish, policies))
    except (FitError, MemoryPlanError) as error:
        return [Row(setting=setting, policy=policy, note=str(error)) for policy in policies]
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return [Row(setting=setting, policy=outcome.policy, outcome=outcome) for outcome in found]


def _machines(hardware: HardwareProfile, threads: Sequence[int | None]) -> list[HardwareProfile]:
    return [hardware if number is None else with_threads(hardware, number) for number in threads]


def _sizes(hardware: HardwareProfile, vram: Sequence[int]) -> Sequence[int]:
    """Bytes of each accelerator, ascending. Raises ValueError for more than the smallest has."""
    cards = hardware.accelerators
    if not cards:
        if any(vram):
            raise ValueError(f"--vram is given, but {hardware.name} has no accelerator; name another by --hardware")
        return (0,)
    smallest = min(cards, key=lambda card: card.vram_bytes)
    if vram:
        if max(vram) > smallest.vram_bytes:
            has = f"{smallest.vram_bytes / GIB:.1f} GiB"
            raise ValueError(f"--vram asks for {max(vram) / GIB:.1f} GiB, but {smallest.name} has {has}; ask for less")
        return sorted(set(vram))
    free = min(card.free_bytes for card in cards)
    return [free * part // _PARTS for part in range(_PARTS + 1)]


def _measures(found: Outcome | None) -> dict[str, str | int | float | None]:
    return {
        **_rates("decode", found.decode if found else None),
        **_rates("prefill", found.prefill if found else None),
        "hit_rate": found.hit_rate if found else None,
        "experts_on_accelerators": found.resident if found else None,
        "link_mb_per_token": found.link_mb_per_token if found else None,
        "cpu_experts_mb_per_token": found.ram_mb_per_token if found else None,
        "misses": found.misses if found else None,
    }


def _rates(name: str, found: Prediction | None) -> dict[str, float | None]:
    values = (found.value, found.low, found.high) if found else (None, None, None)
    return dict(zip((f"{name}_tok_s", f"{name}_tok_s_low", f"{name}_tok_s_high"), values, strict=True))
