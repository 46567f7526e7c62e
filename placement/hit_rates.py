"""Hit rates of a trace alone, where no sizes are known: by policy and by how many experts of each layer are kept."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .held_out import halves, touched_halves
from .replay import CacheKind, hottest, replay
from .simulate import MOST_TOKENS, SEED_SHARE
from .trace import RoutingTrace, last_tokens

SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class HitRate:
    """slots: of each layer, `share` of its experts; loads_per_token: experts brought in, all layers together."""

    policy: CacheKind
    streams: int
    slots: int
    share: float
    hit_rate: float
    loads_per_token: float


def hit_rates(trace: RoutingTrace, policies: Sequence[CacheKind], streams: int = 1) -> Iterator[HitRate]:
    """For each of the SHARES, each policy: learned on the first half of the sample and measured on the second.

    A cache brings in whatever it misses. Raises ValueError where the sample is too short for the streams.
    """
    learned, rest = halves(last_tokens(trace, MOST_TOKENS))
    touched, warm = touched_halves(learned, rest, streams)
    counts = learned.phases["decode"].counts
    for slots in sorted({max(round(share * trace.num_experts), 1) for share in SHARES}):
        for policy in policies:
            held = slots if policy == "static" else math.ceil(SEED_SHARE * slots)
            pinned = hottest(counts, held) if policy in ("static", "seeded") else None
            found = replay(touched, policy, slots, pinned=pinned)
            yield HitRate(
                policy=policy,
                streams=streams,
                slots=slots,
                share=slots / trace.num_experts,
                hit_rate=found.hit_rate(warm),
                loads_per_token=found.loads_per_step(warm) / streams,
            )
