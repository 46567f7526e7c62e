"""What the experts of a layer take, on several devices at once."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .overlap import Longest, longest, mixed, split
from .shape import CPU
from .touch import Demand, Floats


@dataclass(frozen=True, slots=True)
class Branch:
    """A device's way: call_ms and hop_ms once if it is taken; table: float64, of an expert by how many tokens go to it,
    as many entries as the demand has chances. lone_call_ms: instead of call_ms if no other device has experts."""

    call_ms: float
    hop_ms: float
    table: Floats
    lone_call_ms: float | None = None

    def calls_ms(self, *, lone: bool) -> float:
        return self.lone_call_ms if lone and self.lone_call_ms is not None else self.call_ms

    def once_ms(self, *, lone: bool) -> float:
        return self.calls_ms(lone=lone) + self.hop_ms


@dataclass(frozen=True, slots=True)
class ExpertTime:
    """mean_ms and variance of a step's time; the device whose branch is the longest (None where there are no experts),
    and how much of the mean are its call and hops."""

    mean_ms: float
    variance: float
    device: int | None
    call_ms: float
    hop_ms: float


NO_TIME = ExpertTime(0.0, 0.0, None, 0.0, 0.0)


class ExpertCost:
    """Of a layer's experts, with a branch for each device that may hold some. demand: of a step.

    Times of two devices depend on each other: what one expert gets of a step's choices another does not. So the tokens
    of two experts have a covariance of -v w / s, v and w being their variances and s the sum over all experts; with it
    the sum over all of them does not vary. A time follows its tokens by regression.
    """

    def __init__(self, demand: Demand, branches: Mapping[int, Branch]) -> None:
        self._demand, self._branches = demand, branches
        counts = np.arange(float(demand.chances.shape[1]))
        self._tokens, square = demand.chances @ counts, demand.chances @ counts**2
        self._count_variance = float(np.sum(square - self._tokens**2))
        self._moments = {device: self._moments_of(branch.table, counts) for device, branch in branches.items()}

    def _moments_of(self, table: Floats, counts: Floats) -> Floats:
        """float64 [3, experts]: mean and variance of an expert's time, its covariance with the expert's tokens."""
        mean, square, product = (self._demand.chances @ np.stack([table, table**2, table * counts], axis=1)).T
        return np.stack([mean, square - mean**2, product - mean * self._tokens])

    def at(self, resident: NDArray[np.int8]) -> ExpertTime:
        """With each expert on its device of `resident`, int8 [experts], of at least one."""
        devices = [int(device) for device in np.unique(resident)]  # the CPU first
        sums = np.stack([self._moments[device][:, resident == device].sum(axis=1) for device in devices])
        called, lone = self._demand.touches(resident == CPU) if CPU in devices else 0.0, len(devices) == 1
        once = np.array([self._branches[device].once_ms(lone=lone) for device in devices])
        result = self._longest(devices, sums[:, :, None], np.array([called]), once[:, None])
        taken = np.array([called if device == CPU else 1.0 for device in devices])
        first = int(np.argmax(sums[:, 0] + taken * once))
        branch = self._branches[devices[first]]
        return ExpertTime(
            mean_ms=float(result.mean[0]),
            variance=float(result.variance[0]),
            device=devices[first],
            call_ms=float(taken[first]) * branch.calls_ms(lone=lone),
            hop_ms=float(taken[first]) * branch.hop_ms,
        )

    def curve(self, device: int, rest: int = CPU) -> Floats:
        """float64 [experts + 1]: mean time with the 0 .. all hottest experts on a card, the others on `rest`."""
        here, there = (self._moments[number][:, self._demand.order] for number in (rest, device))
        none, called = np.zeros((3, 1)), self._demand.beyond
        sums = np.stack([
            np.hstack([np.cumsum(here[:, ::-1], axis=1)[:, ::-1], none]),
            np.hstack([none, np.cumsum(there, axis=1)]),
        ])  # fmt: skip
        once, lone = (
            np.array([[self._branches[number].once_ms(lone=lone)] for number in (rest, device)])
            for lone in (False, True)
        )
        alone = self._longest([rest], sums[:1, :, :1], called[:1], lone[:1]).mean
        if device == rest:
            return np.repeat(alone, sums.shape[2])
        time = self._longest([rest, device], sums, called, once).mean
        time[0], time[-1] = alone[0], sums[1, 0, -1] + lone[1, 0]  # a device without experts is not called
        return time

    def moved(self, resident: NDArray[np.int8], order: NDArray[np.int64], device: int) -> Floats:
        """float64 [n + 1]: mean time with the first 0 .. n of `order`, which are the CPU's n experts of `resident`, on
        a card. Where any of the others is touched is taken as if they did not depend on each other."""
        devices = sorted({CPU, device, *(int(each) for each in np.unique(resident))})
        sums = np.stack([self._moments[number][:, resident == number].sum(axis=1) for number in devices])
        sums = np.repeat(sums[:, :, None], len(order) + 1, axis=2)
        for number, sign in ((CPU, -1.0), (device, 1.0)):
            sums[devices.index(number), :, 1:] += sign * np.cumsum(self._moments[number][:, order], axis=1)
        untouched = np.cumprod(self._demand.chances[order[::-1], 0])[::-1]
        once = np.array([[self._branches[number].once_ms(lone=False)] for number in devices])
        mean: Floats = self._longest(devices, sums, np.append(1 - untouched, 0.0), once).mean
        return mean

    @property
    def demand(self) -> Demand:
        return self._demand

    @property
    def tokens(self) -> Floats:
        """float64 [experts]: how many go to each, on average."""
        return self._tokens

    def mean_ms(self, device: int) -> Floats:
        """float64 [experts]: of each, if it lies on the device."""
        mean: Floats = self._moments[device][0]
        return mean

    def _longest(self, devices: list[int], sums: Floats, called: Floats, once: Floats) -> Longest:
        """sums: float64 [devices, 3, points] of moments; called: float64 [points], that the CPU is called at all; once:
        float64 [devices, points], of a call."""
        means, variances, slopes = sums[:, 0], sums[:, 1], sums[:, 2]
        covariances = -slopes[:, None] * slopes[None] / (self._count_variance or 1.0)
        at = np.arange(len(devices))
        covariances[at, at] = np.maximum(covariances[at, at] + variances, 0.0)
        if devices[0] != CPU:
            return longest(means + once, covariances)
        idle, calling = split(means, covariances, called)
        idle.means[1:] += once[1:]
        calling.means[:] += once
        return mixed(longest(*idle), longest(*calling), called)
