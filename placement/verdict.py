"""Verdict: whether pinning a model's hottest experts is worth memory, in words."""

from dataclasses import dataclass
from typing import Literal

from .skew import Popularity, Skew, measure_popularity, measure_skew, tokens_needed
from .trace import RoutingTrace

FRACTION = 0.2  # of the experts, that is judged by
# Of the misses of a set taken by chance, what the hottest must save; of the choices, what a cache must have more.
WORTH = 0.1
SURE = 3.0  # standard deviations of the shuffles


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """text: a few sentences, with the numbers behind them."""

    pinning: Literal["helps", "does not help", "unknown"]
    text: str


def judge(trace: RoutingTrace) -> tuple[Verdict, Skew | None]:
    """The verdict and what it rests on, None where there is too little traffic."""
    skew = measure_skew(trace)
    return (verdict_of(skew) if skew is not None else _unknown(trace)), skew


def judge_popularity(trace: RoutingTrace) -> Verdict:
    """The verdict without what a cache would do, which takes most of the time."""
    popularity = measure_popularity(trace, FRACTION)
    return verdict_of(popularity) if popularity is not None else _unknown(trace)


def _unknown(trace: RoutingTrace) -> Verdict:
    text = (
        f"nothing can be said of pinning yet: the sample has {len(trace.sample)} decode tokens and "
        f"{tokens_needed(trace)} are needed; record more with `isotherm profile`, or serve for a while"
    )
    return Verdict(pinning="unknown", text=text)


def verdict_of(popularity: Popularity) -> Verdict:
    """Pinning helps if the hottest experts are hot in traffic that they were not learned from, too: beyond what
    shuffles show by luck, and enough to be worth the memory. More is said of a whole Skew."""
    at = popularity.at(FRACTION)
    saved = (at.held_out - at.uniform) / (1 - at.uniform)
    beyond_luck = at.held_out > at.shuffled + SURE * at.shuffled_spread
    numbers = (
        f"the hottest {_percent(at.fraction)} of the experts take {_percent(at.held_out)} of the choices of traffic "
        f"they were not learned from, where chance would give {_percent(at.uniform)}"
    )
    if saved >= WORTH and beyond_luck:
        helps, sentences = True, [f"pinning will help this model: {numbers}."]
    else:
        helps = False
        sentences = [
            f"pinning will {'hardly' if beyond_luck else 'not'} help this model: {numbers}; give the memory to the KV "
            "cache or to whole layers.",
            f"In the traffic they were learned from they take {_percent(at.same)}, and by luck alone it would be "
            f"{_percent(at.luck)}.",
        ]
    if isinstance(popularity, Skew):
        sentences.append(_cache(popularity))
    return Verdict(pinning="helps" if helps else "does not help", text=" ".join([*sentences, *_doubts(popularity)]))


def _cache(skew: Skew) -> str:
    at = skew.at(FRACTION)
    hit, without_order = (float(rates[:, at.per_layer].mean()) for rates in (skew.lru_by_layer, skew.lru_shuffled))
    pinned = float(at.by_layer.mean())
    text = (
        f"With room for {at.per_layer} of {skew.lru_by_layer.shape[1] - 1} experts in each layer, a cache of the most "
        f"recently used has {_percent(hit)} of the choices ({_percent(without_order)} if tokens came in random order), "
        f"pinned ones {_percent(pinned)}."
    )
    if hit - pinned < WORTH:
        return text
    return text + " Recency says more than popularity here: a cache that follows the traffic makes more of memory."


def _doubts(popularity: Popularity) -> list[str]:
    if popularity.parts_are == "sequences":
        return []
    return ["Most of the sample is one sequence, so this was tested on other pieces of it; record several to be sure."]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
