"""What a step takes beside its products: measured on whole decoders with random weights."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from ..cpu_kernels.bandwidth import PlainReads
from ..cpu_kernels.layout import KV_BLOCK
from ..cpu_kernels.seating import Seating
from ..experts.kv_store import KvStore
from ..experts.measured import MeasuredProducts
from ..experts.pack import PackedWeights
from ..experts.random_decoder import first_layers, random_decoder, random_shape, small_spec, wide_spec
from ..experts.spec import ModelSpec
from ..experts.step_inputs import StepLimits
from ..placement.fit import Plain
from ..placement.shape import ModelShape
from .calibrate_kinds import seconds
from .runner import DecoderRunner
from .step import Chunk, StepPlan

CONTEXT = 16384  # positions of a long context: its keys and values come from memory
PROMPT, PART, PART_START = 512, 128, 4096  # tokens of a prompt; of a part of one, at the beginning and later
SHORT = KV_BLOCK  # positions of a short context
_OTHERS = (2048, 2048)  # products that leave nothing of a decoder in caches
_TOKENS, _COLD = 7, 10  # tokens measured after each context, and with cold caches


@dataclass(frozen=True, slots=True)
class KvTimes:
    """Microseconds, with one kind of KV cache: of a token after a short and a long context, and of a part of a prompt
    at its beginning and later. plain: beside the tokens."""

    short: float
    long: float
    first: float
    later: float
    plain: Plain


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderTimes:
    """Microseconds of a step: of a token in small decoders of one layer and of several, and of a prompt in a wide one;
    kv: by the kind of the KV cache."""

    one_layer: float
    layers: float
    prompt: float
    kv: dict[str, KvTimes]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShapes:
    """Of what `DecoderTimes` was measured with; kv: that of KvTimes, with the kind of its cache left out of account."""

    one_layer: ModelShape
    layers: ModelShape
    wide: ModelShape
    kv: dict[str, ModelShape]


class DecoderMeter:
    """The decoders, with weights of one kind, and a KV cache of each of some kinds. A context manager."""

    def __init__(self, kind: str, kv_kinds: Sequence[str], seating: Seating, plain: PlainReads) -> None:
        self._plain = plain
        small, wide = small_spec(CONTEXT), wide_spec(CONTEXT + KV_BLOCK)
        few, many = (random_decoder(spec, kind, seating) for spec in (small, wide))
        one, two = first_layers(small, 1), first_layers(wide, 2)
        self._one, self._layers = (_runner(spec, few, kv_kinds[0], SHORT + 2, seating) for spec in (one, small))
        self._wide = _runner(wide, many, kv_kinds[0], PROMPT, seating)
        self._kv = {kv: _runner(two, many, kv, CONTEXT + 1, seating) for kv in kv_kinds}
        self.shapes = DecoderShapes(
            one_layer=random_shape(one, kind, kv_kinds[0]),
            layers=random_shape(small, kind, kv_kinds[0]),
            wide=random_shape(wide, kind, kv_kinds[0]),
            kv={kv: random_shape(two, kind, kv) for kv in kv_kinds},
        )
        self._others = MeasuredProducts(kind, *_OTHERS, 1, seating, far=True)
        self._others.set_tokens(1)
        self._token = 0

    def times(self) -> DecoderTimes:
        """One round."""
        random = np.random.default_rng(0)
        prompt = random.integers(0, self._wide.vocab_size, PROMPT).tolist()
        one, layers = self._cold_us(self._one), self._cold_us(self._layers)
        return DecoderTimes(
            one_layer=one,
            layers=layers,
            prompt=min(seconds(lambda: self._wide.execute(_plan(prompt, 0)), 2)) * 1e6,
            kv={kv: self._kv_times(runner, prompt) for kv, runner in self._kv.items()},
        )

    def _kv_times(self, runner: DecoderRunner, prompt: list[int]) -> KvTimes:
        # a token is measured in turn after both contexts, since only the difference counts
        before = self._plain.gb_s()
        tokens = [(self._token_us(runner, SHORT), self._token_us(runner, CONTEXT)) for _ in range(_TOKENS)]
        after = self._plain.gb_s()
        short, long = np.median(tokens, axis=0)
        part = prompt[:PART]
        return KvTimes(
            short=float(short),
            long=float(long),
            first=min(seconds(lambda: runner.execute(_plan(part, 0)), 2)) * 1e6,
            later=min(seconds(lambda: runner.execute(_plan(part, PART_START)), 2)) * 1e6,
            plain=Plain((before, after)),
        )

    def _cold_us(self, runner: DecoderRunner) -> float:
        """Of a token where caches hold other things, as they do when weights came by: the fastest was not disturbed."""
        times = []
        for _ in range(_COLD):
            runner.team.run(self._others.program, self._others.counts)
            times.append(self._token_us(runner, SHORT))
        return min(times)

    def _token_us(self, runner: DecoderRunner, start: int) -> float:
        plan = _plan([self._next()], start)
        started = time.perf_counter()
        runner.execute(plan)
        return (time.perf_counter() - started) * 1e6

    def _next(self) -> int:
        """A token that chooses other experts than the last."""
        self._token = (self._token + 1) % self._wide.vocab_size
        return self._token

    def __enter__(self) -> "DecoderMeter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for runner in (self._one, self._layers, self._wide, *self._kv.values()):
            runner.close()


def _plan(tokens: list[int], start: int) -> StepPlan:
    blocks = (start + len(tokens) - 1) // KV_BLOCK + 1
    return StepPlan((Chunk("0", tokens, start, list(range(blocks)), True),))


def _runner(spec: ModelSpec, weights: PackedWeights, kv: str, positions: int, seating: Seating) -> DecoderRunner:
    blocks = -(-positions // KV_BLOCK)
    cache = KvStore(spec, blocks, kv)
    cache.fill()
    return DecoderRunner(spec, weights, cache, StepLimits(PROMPT, 1, blocks), blocks, seating)
