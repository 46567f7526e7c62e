"""The sampler: one row of logits becomes one token. NumPy only; one `Sampler` per request.

Order: logit_bias, repetition, presence and frequency penalty, min_tokens, bans, structure, temperature, top_k, top_p,
min_p, draw.
Each filter sees the distribution that the one before it left. Equal scores rank by the lower token id.
"""

import math
import secrets
from collections import deque
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from .errors import EngineError
from .messages import TokenLogprobs
from .request import SamplingParams
from .token_bans import TokenBans

Floats = NDArray[np.float32]
Ints = NDArray[np.intp]

_COLUMN = 64  # values per column when ranking: the k-th best column maximum bounds the k-th best value from below
_SPAN = 512  # weights per partial sum when drawing from a whole vocabulary
_SHORT_NUCLEUS = 256  # top_p mostly keeps fewer tokens than this; only flat distributions need more
_BUCKETS = 2048  # of a flat distribution's nucleus, each 1 / _BUCKETS_PER_UNIT of log-probability wide
_BUCKETS_PER_UNIT = 32
_WORD = 2**64 - 1
_COLDEST = np.finfo(np.float32).tiny  # a temperature that float32 rounds to zero must not divide by it


class Sampler:
    """Draws the tokens of one request, in order.

    The random number of a token depends on (seed, index of the token in the output) only: batch, preemption and other
    requests cannot change the text. Without a seed one is drawn here, once. `stop_ids` cannot be drawn before
    min_tokens tokens.
    """

    def __init__(self, params: SamplingParams, prompt: Sequence[int], stop_ids: Collection[int] = ()) -> None:
        self._params = params
        self._uniforms = _Uniforms((secrets.randbits(64) if params.seed is None else params.seed) & _WORD)
        self._index = 0
        self._counts: dict[int, int] = {}  # of the output
        self._prompt = prompt
        self._seen: NDArray[np.bool_] | None = None  # by token: in prompt or output; kept for repetition_penalty
        self._stop: Ints = np.asarray(sorted(stop_ids), dtype=np.intp)
        self._bias_ids: Ints = np.asarray([token for token, _ in params.logit_bias], dtype=np.intp)
        self._bans = TokenBans(params)
        self._tail: deque[int] = deque(maxlen=self._bans.reach)  # of the output
        self._bias: Floats = np.asarray([bias for _, bias in params.logit_bias], dtype=np.float32)

    def sample(self, logits: Floats, allowed: NDArray[np.bool_] | None = None) -> tuple[int, TokenLogprobs | None]:
        """The next token from its float32 logits [vocab], which are not changed, and its log-probabilities if wanted.

        allowed [vocab]: which tokens may be chosen; None for all.

        Log-probabilities are the log-softmax of the logits as the model gave them, before any rule above.
        Raises EngineError if a logit is NaN or infinite, or if the rules leave no token to choose.
        """
        best = int(logits.argmax())  # the first NaN if there is one, else the best value's lowest id
        if not (math.isfinite(logits[best]) and math.isfinite(logits.min())):
            raise EngineError(f"the model gave a NaN or infinite logit for output token {self._index}")
        scores = self._adjusted(logits, allowed)
        token = best if scores is logits else int(scores.argmax())
        if self._params.temperature > 0:
            token = self._draw(scores, scores[token])
        wanted = self._params.logprobs
        logprobs = None if wanted is None else log_probabilities(logits, token, wanted)
        self._count(token)
        return token, logprobs

    def take(self, logits: Floats, token: int) -> TokenLogprobs | None:
        """Take in a token that must come here, whatever the rules say; its log-probabilities, if wanted."""
        self.skip(token)
        wanted = self._params.logprobs
        return None if wanted is None else log_probabilities(logits, token, wanted)

    def skip(self, token: int) -> None:
        """Take in a token that came without being drawn; those after it are drawn as if it had been."""
        if self._params.temperature > 0:
            self._uniforms.draw()
        self._count(token)

    def _count(self, token: int) -> None:
        self._counts[token] = self._counts.get(token, 0) + 1
        if self._seen is not None:
            self._seen[token] = True
        self._tail.append(token)
        self._index += 1

    def _adjusted(self, logits: Floats, allowed: NDArray[np.bool_] | None) -> Floats:
        """The logits after bias, penalties, min_tokens, bans and structure; the same array if none applies."""
        params = self._params
        neutral = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.0, 0.0, 0.0)
        masked = self._index < params.min_tokens and self._stop.size > 0
        if not (self._bias.size or masked or self._bans or not neutral or allowed is not None):
            return logits
        scores = logits.copy()
        np.add.at(scores, self._bias_ids, self._bias)
        if not neutral:
            self._penalise(scores)
        if masked:
            scores[self._stop[self._stop < scores.size]] = -np.inf
        if self._bans:
            self._bans.apply(scores, self._tail)
        if allowed is not None:
            np.copyto(scores, -np.inf, where=~allowed)
            if masked and scores.max() == -np.inf:  # the answer can only end, too short or not
                np.copyto(scores, logits, where=allowed)
        if not np.isfinite(scores.max()):
            raise EngineError(f"the sampling rules leave no token to choose for output token {self._index}")
        return scores

    def _penalise(self, scores: Floats) -> None:
        """Repetition counts prompt and output (a positive score is divided, a negative one multiplied); presence and
        frequency subtract by the output alone."""
        params = self._params
        if params.repetition_penalty != 1.0:
            if self._seen is None:
                self._seen = np.zeros(scores.size, dtype=np.bool_)
                self._seen[np.asarray(self._prompt, dtype=np.intp)] = True
            seen = np.flatnonzero(self._seen)
            values = scores[seen]
            penalty = np.float32(params.repetition_penalty)
            scores[seen] = np.where(values > 0, values / penalty, values * penalty)
        output: Ints = np.fromiter(self._counts, dtype=np.intp, count=len(self._counts))
        counts = np.fromiter(self._counts.values(), dtype=np.float32, count=len(self._counts))
        scores[output] -= np.float32(params.frequency_penalty) * counts + np.float32(params.presence_penalty)

    def _draw(self, scores: Floats, peak: np.float32) -> int:
        """peak: the best score."""
        params = self._params
        with np.errstate(over="ignore"):  # a tiny temperature sends all but the best to -inf, which is right
            scaled = scores - peak
            # In place, as below: fresh pages cost more than the arithmetic.
            if params.temperature != 1.0:
                scaled /= max(np.float32(params.temperature), _COLDEST)
        uniform = self._uniforms.draw()
        ids: Ints | None = None
        if 0 < params.top_k < scaled.size:
            ids = ranked(scaled, params.top_k)
            scaled = scaled[ids]
        if params.top_p < 1.0:
            nucleus = _nucleus(scaled, params.top_p)
            ids = nucleus if ids is None else ids[nucleus]
            scaled = scaled[nucleus]
        weights = np.exp(scaled, out=scaled)
        if params.min_p > 0.0:
            weights[weights < np.float32(params.min_p)] = 0.0  # the best weighs exactly 1
        place = _invert(weights, uniform)
        return place if ids is None else int(ids[place])


def log_probabilities(logits: Floats, token: int, top: int) -> TokenLogprobs:
    """The log-softmax of `token`, wherever it ranks, and of the `top` best ids, best first."""
    peak = logits.max()
    weights = logits - peak
    log_total = float(peak) + float(np.log(np.exp(weights, out=weights).sum(dtype=np.float64)))
    best = ranked(logits, top) if top else ()
    return TokenLogprobs(
        logprob=float(logits[token]) - log_total,
        top=tuple((int(i), float(logits[i]) - log_total) for i in best),
    )


def ranked(values: Floats, count: int) -> Ints:
    """The indices of the `count` largest values, best first, equal ones by the lower index."""
    if count >= values.size:
        return np.argsort(-values, kind="stable")
    columns = values.size // _COLUMN
    if count < columns:
        peaks = values[: columns * _COLUMN].reshape(_COLUMN, columns).max(axis=0)
        floor = np.partition(peaks, columns - count)[columns - count]
    else:
        floor = np.partition(values, values.size - count)[values.size - count]
    candidates = np.flatnonzero(values >= floor)
    return candidates[np.argsort(-values[candidates], kind="stable")][:count]


def _nucleus(scaled: Floats, top_p: float) -> Ints:
    """The shortest run of best ids whose probability reaches top_p, never empty. `scaled` is at most 0."""
    weights = np.exp(scaled)
    needed = top_p * float(weights.sum(dtype=np.float64))
    ids = ranked(scaled, _SHORT_NUCLEUS)
    short = _reach(weights[ids], needed)
    if short < ids.size or ids.size == scaled.size:
        return ids[: short + 1]
    # Sorting all would cost ten times the rest: sort only the bucket in which the sum passes what is needed.
    buckets = np.minimum(scaled * np.float32(-_BUCKETS_PER_UNIT), np.float32(_BUCKETS - 1)).astype(np.int32)
    sums = np.asarray(np.bincount(buckets, weights), dtype=np.float64)
    border = min(_reach(sums, needed), sums.size - 1)
    inside, edge = np.flatnonzero(buckets < border), np.flatnonzero(buckets == border)
    edge = edge[ranked(scaled[edge], edge.size)]
    return np.concatenate([inside, edge[: _reach(weights[edge], needed - float(sums[:border].sum())) + 1]])


def _reach(weights: Floats | NDArray[np.float64], needed: float) -> int:
    """The first place at which the running sum of the weights is at least `needed`; their number if it never is."""
    return int(np.searchsorted(np.cumsum(weights, dtype=np.float64), needed))


def _invert(weights: Floats, uniform: float) -> int:
    """The place where the running sum of the weights passes `uniform` of its total; never one of weight 0."""
    spans = np.cumsum(np.add.reduceat(weights, np.arange(0, weights.size, _SPAN), dtype=np.float64))
    target = uniform * spans[-1]
    span = min(int(np.searchsorted(spans, target, side="right")), spans.size - 1)
    start = span * _SPAN
    inner = np.cumsum(weights[start : start + _SPAN], dtype=np.float64)
    if span:
        target -= spans[span - 1]
    # Rounding may leave the target at the sum itself: the last step of the sum is then meant.
    return start + int(np.searchsorted(inner, min(target, np.nextafter(inner[-1], 0.0)), side="right"))


class _Uniforms:
    """Numbers in [0, 1) of 53 random bits. The one at an index is a function of seed and index: Philox makes blocks of
    four words out of key and counter, and of each block one is used."""

    def __init__(self, seed: int) -> None:
        self._blocks = np.random.Philox(key=seed)

    def draw(self) -> float:
        """The number at the next index, from 0 on."""
        return int(self._blocks.random_raw(4)[0] >> 11) * 2.0**-53
