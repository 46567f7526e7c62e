"""Drawing a token from a row of logits: temperature, top_k, top_p, min_p, in this order, then the draw.

A token's place is the number (magnitude of its scaled logit, id): better ones are lower, and no two are equal. Each
rule keeps the tokens up to some place, which is found digit by digit from sums over the vocabulary. Weights are whole
numbers in units of 2^-44 of the best one, so that their sums are exact in any order.

The draw walks the kept tokens from the best on; where only weights decide, by id; and in a long nucleus by id up to the
bucket of 1/32 in log-probability where it ends, as the host's sampler does.
"""

import torch
import triton.language as tl

from .arithmetic import INFINITY, exp_of, magnitude_bits
from .jit import EXACT, kernel

_BLOCK = 1024
_LARGEST = 1 << 20  # vocabulary
ID_BITS = tl.constexpr(20)
IDS = tl.constexpr((1 << 20) - 1)
ALL = tl.constexpr((1 << 52) - 1)  # no place is higher
DIGITS = tl.constexpr(13)  # of 4 bits
BUCKETS = tl.constexpr(2048)  # of 1/32 in log-probability; the last one is open
SHORT = tl.constexpr(256)  # tokens of a nucleus that is walked from the best on
COLDEST = tl.constexpr(2.0**-126)


@kernel
def _peak(row, vocab, BLOCK: tl.constexpr):
    """The largest logit, its lowest id, and whether one is no number."""
    best, at, wild = (
        tl.full((BLOCK,), float("-inf"), tl.float32),
        tl.zeros((BLOCK,), tl.int32),
        tl.zeros((BLOCK,), tl.int32),
    )
    for first in range(0, vocab, BLOCK):
        column = first + tl.arange(0, BLOCK)
        value = tl.load(row + column, mask=column < vocab, other=float("-inf"))
        wild |= (magnitude_bits(value) > INFINITY).to(tl.int32)
        at, best = tl.where(value > best, column, at), tl.where(value > best, value, best)
    peak = tl.max(best, axis=0)
    return peak, tl.min(tl.where(best == peak, at, vocab), axis=0), tl.max(wild, axis=0) > 0


@kernel
def _bucket(scaled):
    return tl.minimum(scaled * -32.0, BUCKETS - 1.0).to(tl.int32)


@kernel
def _mass(source, rule, bound, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """The mass, int64 [n], of the kept tokens whose turn comes up to each bound [n].

    source: (row, vocab, peak, temperature); rule: (border, the last place that is kept, the least weight). A turn is a
    token's place, or its id alone where its bucket is below the border. COUNT: each token weighs 1.
    """
    row, vocab, peak, temperature = source
    border, last, least = rule
    N: tl.constexpr = bound.shape[0]
    total = tl.zeros((N, BLOCK), tl.int64)
    for first in range(0, vocab, BLOCK):
        column = first + tl.arange(0, BLOCK)
        value = tl.load(row + column, mask=column < vocab, other=float("-inf"))
        scaled = tl.div_rn(value - peak, temperature)
        place = (magnitude_bits(scaled).to(tl.int64) << ID_BITS) | column
        turn = tl.where(_bucket(scaled) < border, column.to(tl.int64), place)
        weight = exp_of(scaled)
        mass = (weight * 17592186044416.0).to(tl.int64)
        if COUNT:
            mass = tl.full((BLOCK,), 1, tl.int64)
        kept = (column < vocab) & (place <= last) & (weight >= least)
        total += tl.where(kept[None, :] & (turn[None, :] <= bound[:, None]), mass[None, :], 0)
    return tl.sum(total, axis=1)


@kernel
def _reach(source, rule, needed, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """The first turn up to which the mass is at least `needed`, which all have together."""
    turn = needed * 0
    for digit in range(DIGITS):
        shift = 4 * (DIGITS - 1 - digit)
        bound = turn + ((tl.arange(0, 16) + 1).to(tl.int64) << shift) - 1
        below = _mass(source, rule, bound, COUNT, BLOCK) < needed
        turn += tl.sum(below.to(tl.int64), axis=0) << shift
    return turn


@kernel
def _total(source, rule, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    return tl.sum(_mass(source, rule, tl.full((1,), ALL, tl.int64), COUNT, BLOCK), axis=0)


@kernel
def _draw(source, rules, uniform, BLOCK: tl.constexpr):
    """rules: (top_k, top_p, min_p)."""
    top_k, top_p, min_p = rules
    vocab = source[1]
    border, last = tl.full((), BUCKETS, tl.int32), tl.full((), ALL, tl.int64)
    if (top_k > 0) & (top_k < vocab):
        border *= 0
        last = _reach(source, (border, last, 0.0), top_k, True, BLOCK)
    if top_p < 1.0:
        ranked = border * 0, last, 0.0
        mass = _total(source, ranked, False, BLOCK).to(tl.float64)
        last = _reach(source, ranked, tl.maximum(tl.ceil(mass * top_p).to(tl.int64), 1), False, BLOCK)
        scaled = -(last >> ID_BITS).to(tl.int32).to(tl.float32, bitcast=True)
        long = _total(source, (border, last, 0.0), True, BLOCK) > SHORT
        border = tl.where(long & (border > 0), _bucket(scaled), 0)
    rule = border, last, min_p
    mass = _total(source, rule, False, BLOCK)
    needed = tl.minimum(tl.floor(mass.to(tl.float64) * uniform).to(tl.int64) + 1, mass)
    return _reach(source, rule, needed, False, BLOCK) & IDS


@kernel
def sample_kernel(logits, vocab, temperature, rules, uniform, out, BLOCK: tl.constexpr):
    """logits: (numbers, stride of a row)."""
    number = tl.program_id(0)
    row = logits[0] + number.to(tl.int64) * logits[1]
    peak, token, wild = _peak(row, vocab, BLOCK)
    token = token.to(tl.int64)
    heat = tl.load(temperature + number).to(tl.float32)
    wild = wild | (tl.abs(peak) == float("inf"))
    if (heat > 0) & (wild == 0):
        top_k, top_p = tl.load(rules[0] + number).to(tl.int64), tl.load(rules[1] + number).to(tl.float64)
        own = top_k, top_p, tl.load(rules[2] + number).to(tl.float32)
        token = _draw((row, vocab, peak, tl.maximum(heat, COLDEST)), own, tl.load(uniform + number), BLOCK)
    tl.store(out + number, tl.where(wild, -1, token))


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    uniform: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """A token for each row of logits float32 [rows, vocab]: out int64 [rows]; -1 where a logit is NaN or the best is
    infinite. Raises ValueError for more than 2^20 tokens."""
    rows, vocab = logits.shape
    if vocab > _LARGEST:
        raise ValueError(f"a vocabulary of {vocab} tokens is larger than the {_LARGEST} that can be sampled from here")
    source = logits, logits.stride(0)
    sample_kernel[(rows,)](
        source, vocab, temperature, (top_k, top_p, min_p), uniform, out, BLOCK=_BLOCK, num_warps=16, **EXACT
    )
