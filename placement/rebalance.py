"""Rebalancer: decides which experts should change places with others when the traffic has changed."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .cost import CostModel
from .placed import Placement, Traffic
from .shape import CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveCosts:
    """What moving pays and takes. nbytes: int64 [MoE layers], that a swap brings over the link; saving_ms: float64 [MoE
    layers, accelerators], saved each time that a token chooses an expert there and not on the CPU; transfer_ms: as
    saving_ms, of a swap, without what hides behind other work."""

    nbytes: NDArray[np.int64]
    saving_ms: NDArray[np.float64]
    transfer_ms: NDArray[np.float64]

    @classmethod
    def of(cls, cost: CostModel, placement: Placement, traffic: Traffic, hidden: float = 0.0) -> "MoveCosts":
        """By the cost model, around a placement. hidden: the share of a transfer that hides behind other work."""
        layers, cards = cost.shape.moe_layers, cost.hardware.accelerators
        nbytes = np.array([cost.shape.layers[layer].expert_bytes for layer in layers], np.int64)
        saving = np.zeros((len(layers), len(cards)))
        for row, layer in enumerate(layers):
            share = np.sort(cost.share(layer))[::-1]
            for device in range(len(cards)):
                resident = max(int((placement.experts[layer] == device).sum()), 1)
                curve = cost.expert_curve(layer, placement.dense[layer], device, traffic)
                saving[row, device] = (curve[0] - curve[resident]) / (share[:resident].sum() * traffic.streams)
        to_ms = np.array([1e-6 / card.to_gb_s.value for card in cards])  # a byte
        return cls(nbytes=nbytes, saving_ms=saving, transfer_ms=nbytes[:, None] * to_ms * (1 - hidden))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """When a swap is worth it. half_life, horizon: in tokens; how fast old traffic is forgotten, and in how many tokens
    a swap must save more than its transfer takes. hysteresis: how much more often the newcomer must be chosen, 0.2 for
    a fifth; confidence: by how many standard deviations of their counts the two must differ. step_bytes, step_ms: the
    most that the swaps of a step may bring over the link and take. history: how many steps back one can go.

    Raises ValueError for a horizon beyond half_life / ln 2: traffic that goes to and fro in a time too short to pay
    for a swap would then be followed all the same.
    """

    half_life: float = 4096.0
    horizon: float = 4096.0
    hysteresis: float = 0.2
    confidence: float = 4.0
    step_bytes: int
    step_ms: float = math.inf
    history: int = 8

    def __post_init__(self) -> None:
        for name in ("half_life", "horizon", "step_bytes", "step_ms", "history"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")
        for name in ("hysteresis", "confidence"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must not be negative")
        if self.horizon > self.half_life / math.log(2):
            raise ValueError(
                f"horizon is {self.horizon:g} tokens, beyond {self.half_life / math.log(2):g}, what a half-life of "
                f"{self.half_life:g} can answer for; lower it or raise half_life"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """An expert of the CPU and one of an accelerator change places. promoted_rate, demoted_rate: how often a token
    chooses each; saving_ms: in the horizon of so many tokens; transfer_ms: what moving takes."""

    layer: int
    device: int
    promoted: int
    demoted: int
    promoted_rate: float
    demoted_rate: float
    nbytes: int
    horizon: float
    saving_ms: float
    transfer_ms: float

    @property
    def reason(self) -> str:
        return (
            f"layer {self.layer}: a token chooses expert {self.promoted} {self.promoted_rate:.3f} times and expert "
            f"{self.demoted} of accelerator {self.device} {self.demoted_rate:.3f} times; in {self.horizon:g} tokens "
            f"that saves {self.saving_ms:.2f} ms for {self.transfer_ms:.2f} ms of transfer"
        )


class Rebalancer:
    """Follows the traffic and proposes swaps inside layers, so that each device keeps its number of slots in each.

    A use counts half after half_life tokens. Equal input gives equal swaps. pinned: bool [MoE layers, experts], what
    never moves; rates: float64 of that shape, how often a token chose each before, as of a trace; rest: tokens to wait
    before the first swap; earlier: placements that one can go back to, the oldest first.
    """

    def __init__(
        self,
        placement: Placement,
        costs: MoveCosts,
        rules: Rules,
        *,
        pinned: NDArray[np.bool_] | None = None,
        rates: NDArray[np.float64] | None = None,
        rest: float = 0.0,
        earlier: Sequence[Placement] = (),
    ) -> None:
        largest = int(costs.nbytes.max(initial=0))
        if rules.step_bytes < largest:
            raise ValueError(f"step_bytes is {rules.step_bytes}, too few to move an expert; allow at least {largest}")
        self._layers = tuple(layer for layer, experts in enumerate(placement.experts) if len(experts))
        self._costs, self._rules = costs, rules
        self._settle(placement)
        self._pinned = np.zeros(self._where.shape, np.bool_) if pinned is None else pinned.copy()
        self._per_token = math.log(2) / rules.half_life  # of a score in steady traffic
        self._scores = np.zeros(self._where.shape) if rates is None else rates / self._per_token
        self._variances = self._scores / 2  # of independent uses, in steady traffic
        self._history: deque[Placement] = deque(earlier, maxlen=rules.history)
        self._rest = rest

    @property
    def placement(self) -> Placement:
        return self._placement

    @property
    def rates(self) -> NDArray[np.float64]:
        """float64 [MoE layers, experts]: how often a token chooses each expert, by recent traffic."""
        return self._scores * self._per_token

    @property
    def steps_back(self) -> int:
        """How many placements one can go back."""
        return len(self._history)

    @property
    def rest(self) -> float:
        """Tokens to wait before the next swap, as after a step back."""
        return self._rest

    def observe(self, counts: NDArray[np.integer], tokens: int) -> None:
        """What a step of so many tokens chose: counts [MoE layers, experts]."""
        kept = 2.0 ** (-tokens / self._rules.half_life)
        self._scores = self._scores * kept + counts
        self._variances = self._variances * kept**2 + counts
        self._rest = max(self._rest - tokens, 0.0)

    def propose(self) -> tuple[Swap, ...]:
        """The swaps that pay, those of most gain for each byte first, as many as a step may take. Changes nothing."""
        if self._rest:
            return ()
        chosen: list[Swap] = []
        nbytes, took_ms = 0, 0.0
        for swap in self._candidates():
            if nbytes + swap.nbytes <= self._rules.step_bytes and took_ms + swap.transfer_ms <= self._rules.step_ms:
                chosen.append(swap)
                nbytes, took_ms = nbytes + swap.nbytes, took_ms + swap.transfer_ms
        return tuple(chosen)

    def apply(self, swaps: Sequence[Swap]) -> Placement:
        """The placement after the swaps, from now on the current one. Raises ValueError for one that does not fit."""
        if not swaps:
            return self._placement
        experts = [own.copy() for own in self._placement.experts]
        for swap in swaps:
            own = experts[swap.layer]
            if own[swap.promoted] != CPU or own[swap.demoted] != swap.device:
                raise ValueError(
                    f"experts {swap.promoted} and {swap.demoted} of layer {swap.layer} no longer lie where the swap "
                    "found them; propose again"
                )
            own[swap.promoted], own[swap.demoted] = swap.device, CPU
        self._history.append(self._placement)
        self._settle(replace(self._placement, experts=tuple(experts)))
        return self._placement

    def rollback(self) -> Placement:
        """The placement before the last swaps, from now on the current one; no swap is proposed for half_life tokens.

        Raises ValueError if there is none.
        """
        if not self._history:
            raise ValueError("there is no earlier placement to go back to")
        self._settle(self._history.pop())
        self._rest = self._rules.half_life
        return self._placement

    def priced(self, layer: int, device: int, promoted: int, demoted: int) -> Swap:
        """A swap with its numbers, whether or not it pays."""
        row = self._layers.index(layer)
        more = (self._scores[row, promoted] - self._scores[row, demoted]) * self._per_token
        saving = more * self._rules.horizon * self._costs.saving_ms[row, device]
        return self._swap(row, device, promoted, demoted, float(saving))

    def move(self, placement: Placement) -> None:
        """Go on from a placement that came about otherwise; what was before it is no longer to be had."""
        self._history.clear()
        self._settle(placement)

    def _settle(self, placement: Placement) -> None:
        self._placement = placement
        self._where = np.stack([placement.experts[layer] for layer in self._layers]).astype(np.int64)

    def _candidates(self) -> list[Swap]:
        """All swaps that pay: in each layer the n-th most chosen of the CPU with the n-th least chosen elsewhere."""
        rules, scores = self._rules, self._scores
        up = np.where((self._where == CPU) & ~self._pinned, scores, -np.inf)
        down = np.where((self._where != CPU) & ~self._pinned, scores, np.inf)
        promoted = np.argsort(-up, axis=1, kind="stable")
        demoted = np.argsort(down, axis=1, kind="stable")
        high = np.take_along_axis(up, promoted, axis=1)
        low = np.take_along_axis(down, demoted, axis=1)
        row, rank = np.nonzero(high > low)
        promoted, demoted, high, low = promoted[row, rank], demoted[row, rank], high[row, rank], low[row, rank]
        device = self._where[row, demoted]
        transfer = self._costs.transfer_ms[row, device]
        saving = (high - low) * self._per_token * rules.horizon * self._costs.saving_ms[row, device]
        pays = saving > transfer
        pays &= high > (1 + rules.hysteresis) * low
        pays &= high - low > rules.confidence * np.sqrt(self._variances[row, promoted] + self._variances[row, demoted])
        gain = (saving - transfer) / self._costs.nbytes[row]
        best = np.lexsort((rank, row, -gain))
        return [
            self._swap(int(row[n]), int(device[n]), int(promoted[n]), int(demoted[n]), float(saving[n]))
            for n in best[pays[best]]
        ]

    def _swap(self, row: int, device: int, promoted: int, demoted: int, saving_ms: float) -> Swap:
        return Swap(
            layer=self._layers[row],
            device=device,
            promoted=promoted,
            demoted=demoted,
            promoted_rate=float(self._scores[row, promoted] * self._per_token),
            demoted_rate=float(self._scores[row, demoted] * self._per_token),
            nbytes=int(self._costs.nbytes[row]),
            horizon=self._rules.horizon,
            saving_ms=saving_ms,
            transfer_ms=float(self._costs.transfer_ms[row, device]),
        )
