"""What a replay learns from and what it is measured on: the two halves of a trace's sample, or a neutral one."""

from dataclasses import replace

import numpy as np

from .replay import Touches, touches
from .sample import phase_of
from .shape import ModelShape
from .trace import RoutingTrace, empty_trace, last_tokens

_NEUTRAL_TOKENS = 1024  # for as many streams in each half as may be asked for
_SEED = 7


def halves(trace: RoutingTrace) -> tuple[RoutingTrace, RoutingTrace]:
    """The trace with the first half of its sample and its counts of decode, and with the second."""
    middle = len(trace.sample) // 2
    first = replace(trace, sample=trace.sample[:middle], starts=trace.starts[trace.starts < middle])
    return _counted(first), _counted(last_tokens(trace, len(trace.sample) - middle))


def touched_halves(learned: RoutingTrace, rest: RoutingTrace, streams: int) -> tuple[Touches, int]:
    """What so many streams touch in both halves, one after the other, and how many steps the first has.

    Raises ValueError where a half has fewer tokens than there are streams.
    """
    if len(learned.sample) < streams:
        raise ValueError(
            f"the trace's sample holds {len(learned.sample) + len(rest.sample)} decoded tokens, too few to replay "
            f"{streams} stream{'s' if streams > 1 else ''} on each half; record {2 * streams} or more by "
            "`isotherm profile`, or ask for fewer streams"
        )
    first = touches(learned, streams)
    return first.then(touches(rest, streams)), first.steps


def neutral_trace(shape: ModelShape) -> RoutingTrace:
    """Of tokens that choose any experts of each layer alike; always the same ones."""
    layer = shape.layers[shape.moe_layers[0]]
    random = np.random.default_rng(_SEED)
    keys = random.random((_NEUTRAL_TOKENS, len(shape.moe_layers), layer.num_experts), np.float32)
    trace = empty_trace(shape.fingerprint, shape.moe_layers, layer.num_experts, layer.top_k)
    trace.sample = np.argpartition(keys, layer.top_k - 1, axis=2)[:, :, : layer.top_k].astype(np.uint16)
    trace.starts = np.zeros(1, np.int64)
    return trace


def _counted(trace: RoutingTrace) -> RoutingTrace:
    """With the counts of decode that its sample has."""
    return replace(trace, phases={**trace.phases, "decode": phase_of(trace.sample, trace.num_experts)})
