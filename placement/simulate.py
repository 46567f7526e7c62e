"""What if: a trace replayed on any machine, with any memory, traffic and policy of keeping experts on accelerators."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .cost import CostModel
from .draft import Planner, Wish, draft, model_of
from .hardware import CpuProfile, HardwareProfile
from .held_out import halves, neutral_trace, touched_halves
from .ledger import RAM
from .machine import Machine
from .placed import Placement, Prediction
from .planner import plan_placement
from .replay import CacheKind, Replay, Touches, hottest, replay
from .shape import CPU, ModelShape
from .slots import even_slots
from .step_clock import Served, StepClock
from .trace import RoutingTrace, last_tokens

POLICIES: tuple[CacheKind, ...] = ("static", "lru", "lfu", "lfru", "seeded")
MOST_TOKENS = 2048  # of the sample that are replayed
Misses = Literal["computed", "fetched", "split"]
SEED_SHARE = 0.75  # of the slots of a seeded cache
LOADS = 1  # experts that come into a layer in a step while the CPU computes what is missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of one policy. hit_rate: share of the experts wanted by a step that lay on an accelerator; resident: how many lie
    there; misses: what becomes of a missing one: the CPU computes it, or it is brought there first, or some of both.
    link_mb_per_token: brought over links; ram_mb_per_token: experts read by the CPU."""

    policy: CacheKind
    decode: Prediction
    prefill: Prediction
    hit_rate: float
    resident: int
    misses: Misses
    link_mb_per_token: float
    ram_mb_per_token: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """All but the policy. placement: the static plan; free: bytes that it leaves of each accelerator; warm: how many of
    the steps are not measured."""

    cost: CostModel
    wish: Wish
    placement: Placement
    free: tuple[int, ...]
    touched: Touches
    warm: int
    clock: StepClock
    kept: dict[bytes, tuple[Prediction, Prediction]] = field(default_factory=dict)

    def predictions(self, placement: Placement) -> tuple[Prediction, Prediction]:
        """Decode and prefill by the cost model; caches of one size are taken to hold the same experts."""
        key = b"".join(own.tobytes() for own in placement.experts)
        if key not in self.kept:
            traffic = self.wish.traffic
            self.kept[key] = self.cost.decode(placement, traffic), self.cost.prefill(placement, traffic)
        return self.kept[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """Steps with misses fetched or computed. times: float64 [steps], ms."""

    fetched: bool
    served: Served
    times: NDArray[np.float64]


class Simulator:
    """Of one model and its traffic: what is learned is learned on the first half of the sample, and all policies are
    measured on the second. Without a trace every expert is as likely as any other.

    Raises ValueError for a model without experts.
    """

    def __init__(self, shape: ModelShape, trace: RoutingTrace | None = None, planner: Planner = plan_placement) -> None:
        if not shape.moe_layers:
            raise ValueError(f"{shape.name} has no experts, so there is nothing to simulate; see `isotherm plan`")
        self._shape, self._planner = shape, planner
        self._learned, self._rest = halves(last_tokens(neutral_trace(shape) if trace is None else trace, MOST_TOKENS))
        self._known = None if trace is None else self._learned
        self._touches: dict[int, tuple[Touches, int]] = {}
        self._replays: dict[tuple[object, ...], Replay] = {}

    def run(self, hardware: HardwareProfile, wish: Wish, policies: Sequence[CacheKind]) -> Iterator[Outcome]:
        """Each policy with the memory that the static plan gives to experts or leaves.

        Raises FitError where the model does not fit, ValueError where the sample is too short for the streams.
        """
        touched, warm = self._touched(wish.traffic.streams)
        cost = model_of(self._shape, hardware, self._known, disk=False)
        plan = draft(cost, wish, planner=self._planner)
        placement = plan.placement
        free = tuple(account.free for account in plan.ledger if account.device != RAM)
        machine = Machine(hardware, self._shape)
        clock = StepClock(machine, placement, wish.traffic, touched, _read_gb_s(hardware.cpu))
        setting = _Setting(
            cost=cost, wish=wish, placement=placement, free=free, touched=touched, warm=warm, clock=clock
        )
        for policy in policies:
            yield self._static(setting) if policy == "static" else self._adaptive(setting, policy)

    def _static(self, setting: _Setting) -> Outcome:
        where = np.stack([setting.placement.experts[layer] for layer in self._shape.moe_layers]).astype(np.int64)
        at = where[setting.touched.layer, setting.touched.experts]
        served = Served(at=at, target=at, loads=np.zeros(len(at), np.bool_))
        way = _Way(fetched=False, served=served, times=setting.clock.computing(served))
        return _outcome("static", setting, setting.placement, way)

    def _adaptive(self, setting: _Setting, policy: CacheKind) -> Outcome:
        """The fastest of three ways: the CPU computes all that is missing and a few are brought in; all are fetched; or
        as many are fetched as come in the time that the CPU takes for the others."""
        device, slots = even_slots(self._shape, setting.placement, setting.free)
        split = _split(setting, slots)
        ways = [
            self._way(setting, policy, device, slots, fetched=fetched, max_loads=most)
            for fetched, most in ((False, LOADS), (True, None), *([(True, split)] if split else []))
        ]
        best = min(ways, key=lambda way: float(way.times[setting.warm :].mean()))
        filled = hottest(self._learned.phases["decode"].counts, slots)
        experts = list(setting.placement.experts)
        for row, layer in enumerate(self._shape.moe_layers):
            experts[layer] = np.where(filled[row], device[row], CPU).astype(np.int8)
        return _outcome(policy, setting, replace(setting.placement, experts=tuple(experts)), best)

    def _way(
        self,
        setting: _Setting,
        policy: CacheKind,
        device: NDArray[np.int64],
        slots: NDArray[np.int64],
        *,
        fetched: bool,
        max_loads: int | None,
    ) -> _Way:
        found = self._replay(policy, slots, setting.wish.traffic.streams, max_loads)
        target = device[setting.touched.layer]
        served = Served(at=np.where(found.hits, target, CPU), target=target, loads=found.loads)
        clock = setting.clock
        return _Way(
            fetched=fetched, served=served, times=clock.fetching(served) if fetched else clock.computing(served)
        )

    def _touched(self, streams: int) -> tuple[Touches, int]:
        """What both halves touch, and how many steps the first has."""
        if streams not in self._touches:
            self._touches[streams] = touched_halves(self._learned, self._rest, streams)
        return self._touches[streams]

    def _replay(self, policy: CacheKind, slots: NDArray[np.int64], streams: int, max_loads: int | None) -> Replay:
        key = policy, slots.tobytes(), streams, max_loads
        if key not in self._replays:
            counts = self._learned.phases["decode"].counts
            pinned = hottest(counts, np.ceil(SEED_SHARE * slots).astype(np.int64)) if policy == "seeded" else None
            touched, _ = self._touched(streams)
            self._replays[key] = replay(
                touched, policy, slots, pinned=pinned, initial=hottest(counts, slots), max_loads=max_loads
            )
        return self._replays[key]


def _outcome(policy: CacheKind, setting: _Setting, placement: Placement, way: _Way) -> Outcome:
    """placement: with the experts that the policy would hold, by what was learned."""
    touched, warm, streams, served = setting.touched, setting.warm, setting.wish.traffic.streams, way.served
    loaded, read = setting.clock.loaded_bytes(served), setting.clock.read_bytes(served)
    if way.fetched:
        read = read - loaded  # the CPU has no part in these
    predicted, prefill = setting.predictions(placement)
    return Outcome(
        policy=policy,
        decode=_as_replayed(predicted, streams, float(way.times[warm:].mean())),
        prefill=prefill,
        hit_rate=float((served.at[touched.offsets[warm * touched.layers] :] != CPU).mean()),
        resident=sum(int((own != CPU).sum()) for own in placement.experts),
        misses=_misses(way, bool(read[warm:].any())),
        link_mb_per_token=float(loaded[warm:].mean()) / streams / 1e6,
        ram_mb_per_token=float(read[warm:].mean()) / streams / 1e6,
    )


def _misses(way: _Way, computes: bool) -> Misses:
    if not way.fetched:
        return "computed"
    return "split" if computes else "fetched"


def _split(setting: _Setting, slots: NDArray[np.int64]) -> int:
    """How many of a layer's misses to fetch so that link and CPU end together, if experts were used alike."""
    cards, cpu = setting.cost.hardware.accelerators, setting.cost.hardware.cpu
    if not cards:
        return 0
    link, read = min(card.to_gb_s.value for card in cards), _read_gb_s(cpu)
    touched = len(setting.touched.experts) / (setting.touched.steps * setting.touched.layers)
    missing = touched * (1 - float(slots.mean()) / setting.touched.num_experts)
    return round(missing * link / (link + read))


def _as_replayed(predicted: Prediction, streams: int, step_ms: float) -> Prediction:
    """The replay's rate, with the relative interval of the cost model."""
    value = 1e3 * streams / step_ms
    low, high = (value * bound / predicted.value for bound in (predicted.low, predicted.high))
    return Prediction(value=value, low=low, high=high, step_ms=step_ms, parts_ms={})


def _read_gb_s(cpu: CpuProfile) -> float:
    """Plain reading with all threads of the profile."""
    return cpu.read_gb_s.get(cpu.threads, cpu.read_gb_s[max(cpu.read_gb_s)]).value
