"""From measured times to the terms of a hardware profile: medians with their spread, and fits by least squares."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from .hardware import BLOCKS, MOST_SPREAD, Estimate, ProductCost

Floats = NDArray[np.float64]

_OVERLAPS = np.linspace(0.0, 1.0, 101)
_STEADY, _FEWEST = 1.15, 3  # most that plain reads may differ by; rounds that are enough to do without the others
_READS = np.linspace(0.1, 1.1, 401)  # of the time of one token from memory


def estimate(samples: Sequence[float]) -> Estimate:
    """The median of repeated measurements, and as spread half of what the middle 68 % of them take, over the median:
    what the standard deviation is where they are normal, and steadier than that where one of them was disturbed; at
    most MOST_SPREAD."""
    low, middle, high = np.percentile(np.array(samples, np.float64), (16, 50, 84))
    if middle <= 0:
        return Estimate(max(float(middle), 0.0))
    return Estimate(float(middle), min(float((high - low) / 2 / middle), MOST_SPREAD))


@dataclass(frozen=True, slots=True)
class Plain:
    """Plain reads before, between and after other measurements, in GB/s."""

    reads: tuple[float, ...]

    @property
    def gb_s(self) -> float:
        return float(np.median(self.reads))

    @property
    def is_steady(self) -> bool:
        """Whether what was measured meanwhile had the same memory speed throughout."""
        return max(self.reads) < _STEADY * min(self.reads)


@dataclass(frozen=True, slots=True)
class ProductTimes:
    """Nanoseconds for a KiB of weights by the number of tokens: from memory and in cache, for each of BLOCKS."""

    far: Mapping[int, float]
    near: Mapping[int, float]
    plain: Plain


@dataclass(frozen=True, slots=True)
class ExpertTimes:
    """Microseconds of a layer by how many experts are touched, by one token each. near_ns: of an expert's weights in
    cache."""

    near_ns: float
    us: Mapping[int, float]


def fit_experts(times: ExpertTimes) -> tuple[float, float]:
    """Microseconds of a layer, and of each expert that is touched, beside its products."""
    counts = np.array(list(times.us))
    measured = np.array(list(times.us.values()))
    terms = np.stack([np.ones(len(counts)), counts], axis=1)
    # what products take is known: it goes to neither term
    left = measured - counts * times.near_ns / 1e3
    call, expert = fit_terms(terms, np.maximum(left, 1e-3), measured)
    return float(call), float(expert)


def fit_reading(times: ProductTimes) -> tuple[float, float]:
    """GB/s of reading and the overlap with computing, by which `ProductCost.us` comes closest to the times from memory,
    each of one block."""
    reading = times.far[1] * _READS[:, None]
    error = np.zeros((len(_READS), len(_OVERLAPS)))
    for tokens, measured in times.far.items():
        computing = times.near[tokens]
        expected = np.maximum(reading, computing) + (1 - _OVERLAPS) * np.minimum(reading, computing)
        error += (expected / measured - 1) ** 2
    read, overlap = np.unravel_index(np.argmin(error), error.shape)
    return 1024 / float(reading[read, 0]), float(_OVERLAPS[overlap])


def fit_product(rounds: Sequence[ProductTimes], plain_gb_s: float) -> ProductCost:
    """The terms of a kind; each round is fitted by itself, since all its times are of the same seconds. plain_gb_s: of
    plain reads in general."""
    steady = [rounds[n] for n in steady_rounds([times.plain for times in rounds])]
    reads, overlaps = zip(*(fit_reading(times) for times in steady), strict=True)
    overlap = estimate(overlaps)
    return ProductCost(
        read_gb_s=in_general(reads, [times.plain for times in steady], plain_gb_s),
        block_ns_per_kib=tuple(estimate([times.near[size] for times in rounds]) for size in BLOCKS),
        overlap=Estimate(overlap.value, min(overlap.spread, 1.0)),
    )


def steady_rounds(plain: Sequence[Plain]) -> list[int]:
    """The numbers of those in which the memory's speed did not change, or of all, where these are too few."""
    steady = [number for number, around in enumerate(plain) if around.is_steady]
    return steady if len(steady) >= _FEWEST else list(range(len(plain)))


def in_general(reads: Sequence[float], plain: Sequence[Plain], plain_gb_s: float) -> Estimate:
    """GB/s of a kind of reading, which was measured in moments when plain reads were as in `plain`, where they are
    `plain_gb_s`. Memory that others use too is at times half as fast as at others, but a kernel keeps its share."""
    share = estimate([read / around.gb_s for read, around in zip(reads, plain, strict=True)])
    return Estimate(share.value * plain_gb_s, share.spread)


def fit_terms(counts: Floats, times: Floats, wholes: Floats | None = None) -> Floats:
    """Terms, none of them negative, whose sums times their `counts` [measurements, terms] come closest to `times`.

    wholes: what an error is compared with, else the times. All are positive.
    """
    scale = times if wholes is None else wholes
    return np.asarray(nnls(counts / scale[:, None], times / scale)[0], np.float64)
