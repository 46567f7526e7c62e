"""What the answers of a point come to: percentiles and rates."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .answer import Answer
from .load import Point
from .workload import fits_schema


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of so many values; each is one of them (the nearest rank), so that of few the last is the largest."""

    count: int
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a good request must keep to, in seconds; None is whatever."""

    ttft_s: float | None = None
    tpot_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One point. Failed requests count in `failures` alone, by what went wrong; details: what the first of each said.

    seconds: from the first request to the last answer. in_flight: requests that were open, on average. The rates are of
    all together; those of tokens, and tpot_s, are None where answers came without the server's count, which
    without_usage counts. tokens_per_piece: of an answer, by pieces that came apart; itl_s is between these.
    cached_share: of the prompts' tokens, None if the server does not say. valid_share: of the structured answers.
    good_share, good_s: requests within the limits, as a share of all that were answered or failed, and a second.
    """

    streams: int | None
    rate: float | None
    requests: int
    failures: dict[str, int]
    details: dict[str, str]
    cut_off: int
    seconds: float
    in_flight: float
    requests_s: float
    output_tok_s: float | None
    prompt_tok_s: float | None
    ttft_s: Percentiles | None
    tpot_s: Percentiles | None
    itl_s: Percentiles | None
    e2e_s: Percentiles | None
    prompt_tokens: Percentiles | None
    output_tokens: Percentiles | None
    tokens_per_piece: float | None
    cached_share: float | None
    without_usage: int
    valid_share: float | None
    good_share: float | None
    good_s: float | None


def ttft(answer: Answer) -> float:
    """Seconds until the first of the answer came."""
    return answer.arrivals[0] - answer.due


def tpot(answer: Answer) -> float | None:
    """Seconds for each token after the first; None if there is none, or no count, or all came at once."""
    if answer.tokens is None or answer.tokens < 2 or answer.last == answer.arrivals[0]:
        return None
    return (answer.last - answer.arrivals[0]) / (answer.tokens - 1)


def latencies(point: Point) -> dict[str, list[float]]:
    """The values behind each distribution, in seconds."""
    answers = whole(point)
    return {
        "ttft": [ttft(answer) for answer in answers],
        "tpot": [value for answer in answers if (value := tpot(answer)) is not None],
        "itl": [after - before for answer in answers for before, after in pairwise(answer.arrivals)],
        "e2e": [answer.end - answer.due for answer in answers],
    }


def whole(point: Point) -> list[Answer]:
    """The answers that came in full."""
    return [answer for answer in point.answers if answer.failure is None]


def percentiles(values: Sequence[float]) -> Percentiles | None:
    if not values:
        return None
    p50, p95, p99 = np.percentile(values, (50, 95, 99), method="inverted_cdf").tolist()
    return Percentiles(len(values), p50, p95, p99)


def figures(point: Point, *, structured: bool = False, limits: Limits | None = None) -> Figures:
    answers, times = whole(point), latencies(point)
    failed = [answer for answer in point.answers if answer.failure is not None]
    seconds = point.ended - point.started
    output = _total([answer.tokens for answer in answers])
    prompt = _total([answer.prompt_tokens for answer in answers])
    cached = _total([answer.cached_tokens for answer in answers])
    arrivals = sum(len(answer.arrivals) for answer in answers)
    good = None if limits is None else sum(_is_good(answer, limits) for answer in answers)
    ended = len(point.answers)
    return Figures(
        streams=point.streams,
        rate=point.rate,
        requests=len(answers),
        failures=dict(Counter(str(answer.failure) for answer in failed)),
        details={str(answer.failure): answer.detail for answer in reversed(failed)},
        cut_off=point.sent - ended,
        seconds=seconds,
        in_flight=_per(sum(answer.end - answer.due for answer in point.answers), seconds) or 0.0,
        requests_s=_per(len(answers), seconds) or 0.0,
        output_tok_s=_per(output, seconds),
        prompt_tok_s=_per(prompt, seconds),
        ttft_s=percentiles(times["ttft"]),
        tpot_s=percentiles(times["tpot"]),
        itl_s=percentiles(times["itl"]),
        e2e_s=percentiles(times["e2e"]),
        prompt_tokens=percentiles([answer.prompt_tokens for answer in answers if answer.prompt_tokens is not None]),
        output_tokens=percentiles([answer.tokens for answer in answers if answer.tokens is not None]),
        tokens_per_piece=_per(output, arrivals),
        cached_share=_per(cached, prompt or 0),
        without_usage=sum(answer.tokens is None for answer in answers),
        valid_share=_per(sum(fits_schema(answer.text) for answer in answers), len(answers)) if structured else None,
        good_share=_per(good, ended),
        good_s=_per(good, seconds),
    )


def _total(counts: Sequence[int | None]) -> int | None:
    """Their sum, which is not known if one of them is not."""
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _per(amount: float | None, of: float) -> float | None:
    return None if amount is None or of <= 0 else amount / of


def _is_good(answer: Answer, limits: Limits) -> bool:
    """What came at once has no pace to be measured by; an answer without a count cannot be judged."""
    if limits.ttft_s is not None and ttft(answer) > limits.ttft_s:
        return False
    if limits.tpot_s is None:
        return True
    pace = tpot(answer)
    return answer.tokens is not None if pace is None else pace <= limits.tpot_s
