"""The real engine gives a request the same bits alone, in company, cut, after a prefix hit and after preemption.

The scheduler's own share of this is tested in `test_schedule_equality`; here logits are compared bit by bit.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from isotherm.daemon.errors import ContextLengthError
from isotherm.daemon.messages import Submit
from isotherm.daemon.runner import DecoderRunner
from isotherm.daemon.step import StepPlan
from numpy.typing import NDArray
from support.engines import Logits, engine, greedy
from support.serving import Bench, make_submit
from support.tiny import ARCHITECTURES, VOCAB_SIZE, write_gguf

# Every packed kind in some model.
FORMATS = {"llama": "Q4_1", "mixtral": "Q4_0", "qwen2_moe": "Q8_0", "qwen3_moe": "F32", "olmoe": "F16"}
KV_CACHES = {"llama": "int8", "mixtral": "int16", "qwen2_moe": "bf16", "qwen3_moe": "f32", "olmoe": "f16"}
PROMPT = [int(token) for token in np.random.default_rng(5).integers(0, VOCAB_SIZE, 45)]
COUNT = 8


class Witness:
    """A runner, with smaller limits if wanted, that keeps the logits of every sampled position by request."""

    def __init__(self, runner: DecoderRunner) -> None:
        self.runner = runner
        self.block_size, self.vocab_size, self.max_context = runner.block_size, runner.vocab_size, runner.max_context
        self.num_blocks, self.max_step_tokens = runner.num_blocks, runner.max_step_tokens
        self.rows: dict[tuple[str, int], Logits] = {}
        self.alone = lru_cache(self._alone)

    def execute(self, plan: StepPlan) -> NDArray[np.float32]:
        logits = self.runner.execute(plan)
        sampled = (chunk for chunk in plan.chunks if chunk.sample)
        for chunk, row in zip(sampled, logits, strict=True):
            self.rows[chunk.request_id, chunk.start + len(chunk.tokens)] = row.copy()
        return logits

    def bench(self, *, num_blocks: int | None = None, max_step_tokens: int | None = None, **limits: int) -> Bench:
        """A scheduler with an empty cache over this runner."""
        self.rows.clear()
        self.num_blocks = self.num_resident = num_blocks or self.runner.num_blocks
        self.max_step_tokens = max_step_tokens or self.runner.max_step_tokens
        return Bench(self, max_running=min(16, self.max_step_tokens), **limits)  # type: ignore[arg-type]

    def _alone(self, prompt: tuple[int, ...], count: int) -> tuple[list[int], Logits]:
        """Its tokens and logits [count, vocabulary] with nothing else there and its prompt in one step."""
        texts, rows = greedy(self.runner, [prompt], count)
        return texts[0], rows[0]

    def check(self, bench: Bench, submit: Submit) -> None:
        """What the request got so far are the bits that it gets alone."""
        text = bench.texts[submit.request_id]
        expected, rows = self.alone(submit.prompt, submit.sampling.max_tokens)
        assert text == expected[: len(text)]
        for index in range(len(text)):
            got = self.rows[submit.request_id, len(submit.prompt) + index]
            np.testing.assert_array_equal(got, rows[index])


@pytest.fixture(scope="module", params=ARCHITECTURES)
def witness(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Witness]:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    write_gguf(path, request.param, FORMATS[request.param])
    with engine(path, threads=2, num_blocks=80, max_context=80, kv_cache=KV_CACHES[request.param]) as runner:
        yield Witness(runner)


def submit_of(name: str, prompt: list[int], count: int = COUNT) -> Submit:
    return make_submit(name, prompt, max_tokens=count)


@pytest.mark.parametrize("max_step_tokens", [16, 64])
def test_alone_and_among_fifteen(max_step_tokens: int, witness: Witness) -> None:
    bench = witness.bench(max_step_tokens=max_step_tokens)
    mates = [submit_of(f"mate {n}", [*PROMPT[: 2 + 3 * (n % 12)], n], 1 + n % COUNT) for n in range(15)]
    for mate in mates[:9]:
        bench.submit(mate)
    bench.submit(submit_of("a", PROMPT))
    for mate in mates[9:]:
        bench.submit(mate)
    bench.run()
    for submit in [submit_of("a", PROMPT), *mates]:
        assert len(bench.texts[submit.request_id]) == submit.sampling.max_tokens
        witness.check(bench, submit)


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 15, 16, 17, 31, 44, 45])
def test_a_prompt_in_chunks_of_any_size(size: int, witness: Witness) -> None:
    bench = witness.bench(max_step_tokens=size)
    bench.complete(submit_of("a", PROMPT))
    witness.check(bench, submit_of("a", PROMPT))


@pytest.mark.parametrize("length", [15, 16, 17, 32, 44])
def test_after_a_prefix_hit(length: int, witness: Witness) -> None:
    """[42]"""
    bench = witness.bench()
    bench.complete(submit_of("before", PROMPT[:length], 1))
    bench.complete(submit_of("a", PROMPT))
    assert bench.pool.num_hit_tokens == length // 16 * 16
    witness.check(bench, submit_of("a", PROMPT))


@pytest.mark.parametrize("step", [1, 3, 4, 9])
def test_after_preemption(step: int, witness: Witness) -> None:
    """[49]"""
    bench = witness.bench(max_step_tokens=16)
    bench.submit(submit_of("a", PROMPT))
    for _ in range(step):
        bench.step()
    bench.preempt()
    bench.run()
    assert bench.scheduler.num_preemptions == 1
    witness.check(bench, submit_of("a", PROMPT))


STEPS = st.integers(0, 10)
STEMS = (PROMPT[:40], [7] * 33, PROMPT[:17])


@dataclass(frozen=True)
class Arrival:
    prompt: list[int]
    max_tokens: int


@dataclass
class Schedule:
    """Events by step number."""

    arrivals: dict[int, list[Arrival]] = field(default_factory=dict)
    aborts: dict[int, list[int]] = field(default_factory=dict)
    preemptions: set[int] = field(default_factory=set)


@st.composite
def arrival(draw: st.DrawFn) -> Arrival:
    stem = draw(st.sampled_from(STEMS))
    tail = draw(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=6))
    return Arrival(stem[: draw(st.integers(0, len(stem)))] + tail, draw(st.integers(1, 10)))


SCHEDULES = st.builds(
    Schedule,
    arrivals=st.dictionaries(STEPS, st.lists(arrival(), min_size=1, max_size=5), min_size=1, max_size=4),
    aborts=st.dictionaries(STEPS, st.lists(st.integers(0, 9), max_size=2), max_size=2),
    preemptions=st.sets(STEPS, max_size=3),
)


def play(bench: Bench, schedule: Schedule) -> list[Submit]:
    """Run the schedule until every request has ended; the accepted requests."""
    accepted: list[Submit] = []
    for step in range(600):
        for arriving in schedule.arrivals.get(step, []):
            submit = submit_of(f"r{len(accepted)}", arriving.prompt, arriving.max_tokens)
            try:
                bench.submit(submit)
            except ContextLengthError:
                continue
            accepted.append(submit)
        for number in schedule.aborts.get(step, []):
            bench.abort(f"r{number}")
        if step in schedule.preemptions:
            bench.preempt()
        if bench.scheduler.has_work:
            bench.step()
        elif step > 10:
            return accepted
    raise AssertionError(f"no end: {bench.scheduler.stats}")


@settings(max_examples=100)
@given(schedule=SCHEDULES, num_blocks=st.integers(3, 24), max_step_tokens=st.integers(2, 64))
def test_any_schedule(witness: Witness, schedule: Schedule, num_blocks: int, max_step_tokens: int) -> None:
    bench = witness.bench(num_blocks=num_blocks, max_step_tokens=max_step_tokens)
    accepted = play(bench, schedule)
    event(f"preempted: {bench.scheduler.num_preemptions > 0}, hit: {bench.pool.num_hit_tokens > 0}")
    assert bench.pool.num_free == bench.pool.num_blocks
    for submit in accepted:
        witness.check(bench, submit)
