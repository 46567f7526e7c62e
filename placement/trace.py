"""RoutingTrace: which experts tokens went to, as counts and a bounded sample of the sequence of choices."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Phase = Literal["prefill", "decode"]
PHASES: tuple[Phase, ...] = ("prefill", "decode")
SAMPLE_TOKENS = 8192  # decode tokens that a sample holds unless told otherwise


class TraceError(ValueError):
    """A trace cannot be used: damaged, of another model or version, or empty. The text says what to do."""


@dataclass(slots=True, kw_only=True)
class PhaseCounts:
    """Of one phase. counts, mass: float64 [MoE layers, experts], activations and sums of router weights; they are
    fractions once old traffic has decayed. tokens: float64 [MoE layers], how many were routed there. steps: how many
    steps; distinct: float64 [MoE layers], experts touched, summed over steps."""

    counts: NDArray[np.float64]
    mass: NDArray[np.float64]
    tokens: NDArray[np.float64]
    steps: float
    distinct: NDArray[np.float64]

    @classmethod
    def zeros(cls, layers: int, experts: int) -> "PhaseCounts":
        """Of no traffic."""
        return cls(
            counts=np.zeros((layers, experts)),
            mass=np.zeros((layers, experts)),
            tokens=np.zeros(layers),
            steps=0.0,
            distinct=np.zeros(layers),
        )

    def times(self, factor: float) -> "PhaseCounts":
        return PhaseCounts(
            counts=self.counts * factor,
            mass=self.mass * factor,
            tokens=self.tokens * factor,
            steps=self.steps * factor,
            distinct=self.distinct * factor,
        )

    def __iadd__(self, other: "PhaseCounts") -> "PhaseCounts":
        self.counts += other.counts
        self.mass += other.mass
        self.tokens += other.tokens
        self.steps += other.steps
        self.distinct += other.distinct
        return self


@dataclass(slots=True, kw_only=True)
class RoutingTrace:
    """Of one model. layers: the numbers of its MoE layers. sample: uint16 [tokens, MoE layers, top_k], decode tokens in
    the order they were chosen, sequence by sequence; starts: int64, where in the sample another sequence begins, 0
    first, empty for an empty sample."""

    fingerprint: str
    num_experts: int
    top_k: int
    layers: tuple[int, ...]
    phases: dict[Phase, PhaseCounts]
    sample: NDArray[np.uint16]
    starts: NDArray[np.int64]

    @property
    def empty(self) -> bool:
        """No token was ever counted."""
        return not any(phase.tokens.any() for phase in self.phases.values())

    @property
    def ends(self) -> NDArray[np.int64]:
        """Where in the sample each sequence ends: sequence i is sample[starts[i] : ends[i]]."""
        return np.append(self.starts[1:], len(self.sample)).astype(np.int64)[: len(self.starts)]


def empty_trace(fingerprint: str, layers: tuple[int, ...], num_experts: int, top_k: int) -> RoutingTrace:
    """Of no traffic. layers: the numbers of the model's MoE layers."""
    return RoutingTrace(
        fingerprint=fingerprint,
        num_experts=num_experts,
        top_k=top_k,
        layers=layers,
        phases={phase: PhaseCounts.zeros(len(layers), num_experts) for phase in PHASES},
        sample=np.zeros((0, len(layers), top_k), np.uint16),
        starts=np.zeros(0, np.int64),
    )


def decayed(trace: RoutingTrace, factor: float | dict[Phase, float]) -> RoutingTrace:
    """The trace with its counts times `factor`, for both phases or for each. The sample stays: it ages by being
    replaced."""
    factors = factor if isinstance(factor, dict) else dict.fromkeys(PHASES, factor)
    return replace(trace, phases={name: phase.times(factors[name]) for name, phase in trace.phases.items()})


def merged(
    traces: Sequence[RoutingTrace], weights: Sequence[float] | None = None, limit: int = SAMPLE_TOKENS
) -> RoutingTrace:
    """Several traces of one model as one, counts times weights (1 each by default).

    The sample has at most `limit` tokens: the last ones of each, in proportion to the weights while there is a choice.
    Raises TraceError for traces of different models, and for weights that are not positive.
    """
    weights = [1.0] * len(traces) if weights is None else weights
    if not traces or len(weights) != len(traces):
        raise TraceError(f"{len(traces)} traces cannot be merged with {len(weights)} weights; give one weight to each")
    if not all(math.isfinite(weight) and weight > 0 for weight in weights):
        raise TraceError(
            f"the weights of traces must be positive numbers, not {list(weights)}; leave out what counts 0"
        )
    for trace in traces[1:]:
        check_same_model(traces[0], trace)
    total = empty_trace(traces[0].fingerprint, traces[0].layers, traces[0].num_experts, traces[0].top_k)
    for trace, weight in zip(traces, weights, strict=True):
        for name, phase in trace.phases.items():
            total.phases[name] += phase.times(weight)
    shares = _shares([len(trace.sample) for trace in traces], weights, limit)
    tails = [last_tokens(trace, share) for trace, share in zip(traces, shares, strict=True)]
    offsets = np.cumsum([0, *shares[:-1]])
    total.sample = np.concatenate([tail.sample for tail in tails])
    total.starts = np.concatenate([tail.starts + offset for tail, offset in zip(tails, offsets, strict=True)])
    return total


def appended(
    trace: RoutingTrace, newer: RoutingTrace, half_life: float | None = None, limit: int = SAMPLE_TOKENS
) -> RoutingTrace:
    """The trace with newer traffic of the same model. half_life: in tokens of a phase; what is in the trace counts half
    after so many newer tokens of that phase, and without it nothing decays."""
    if half_life is not None:
        if not half_life > 0:
            raise TraceError(
                f"a half-life must be more than 0 tokens, not {half_life}; leave it out to keep all counts"
            )
        came = {name: float(phase.tokens.max(initial=0.0)) for name, phase in newer.phases.items()}
        trace = decayed(trace, {name: 0.5 ** (tokens / half_life) for name, tokens in came.items()})
    return merged((trace, newer), limit=limit)


def last_tokens(trace: RoutingTrace, count: int) -> RoutingTrace:
    """The trace with only the last `count` tokens of its sample."""
    first = max(len(trace.sample) - count, 0)
    if first == len(trace.sample):
        return replace(trace, sample=trace.sample[first:], starts=trace.starts[:0])
    starts = np.maximum(trace.starts[np.searchsorted(trace.starts, first, side="right") - 1 :] - first, 0)
    return replace(trace, sample=trace.sample[first:], starts=starts)


def check_same_model(one: RoutingTrace, other: RoutingTrace) -> None:
    """Raises TraceError, naming both, unless the two traces are of one model."""
    if one.fingerprint != other.fingerprint:
        raise TraceError(
            f"one trace is of model {one.fingerprint}, the other of model {other.fingerprint}; only traces of one and "
            "the same checkpoint can be used together: record the traffic again with the model that you serve"
        )
    if _form(one) != _form(other):
        raise TraceError(
            f"two traces of model {one.fingerprint} differ in form, one with {_form(one)}, the other with "
            f"{_form(other)}; one of them is damaged: record it again with `isotherm profile`"
        )


def _form(trace: RoutingTrace) -> str:
    layers = ", ".join(map(str, trace.layers))
    return f"{trace.num_experts} experts, {trace.top_k} for each token, in layers {layers}"


def _shares(lengths: Sequence[int], weights: Sequence[float], limit: int) -> list[int]:
    """How many tokens each sample may keep: in proportion to the weights; what one does not need goes to the others."""
    shares = [0] * len(lengths)
    left, weight_left = limit, float(sum(weights))
    for index in sorted(range(len(lengths)), key=lambda index: lengths[index] / weights[index]):
        shares[index] = min(lengths[index], round(left * weights[index] / weight_left))
        left -= shares[index]
        weight_left -= weights[index]
    return shares
