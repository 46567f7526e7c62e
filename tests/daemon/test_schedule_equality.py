"""Output depends on no batch mates, order, chunks, cache hits, preemption or aborts: equality over random schedules."""

from dataclasses import dataclass, field

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from isotherm.daemon.errors import ContextLengthError
from isotherm.daemon.messages import Submit
from support.fake_runner import FakeRunner
from support.serving import Bench, make_submit

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4]
STEMS = ([1] * 12, PROMPT[:9], [*PROMPT[:4], 9, 9])


@pytest.mark.parametrize("max_step_tokens", [8, 9, 13, 64])
def test_a_request_is_the_same_alone_and_among_fifteen(max_step_tokens: int) -> None:
    bench = Bench(FakeRunner(max_step_tokens=max_step_tokens, num_blocks=24), max_running=8)
    for n in range(15):
        bench.submit(make_submit(f"mate {n}", [*PROMPT[: 2 + n % 12], n], max_tokens=9))
    bench.complete(make_submit("a", PROMPT, max_tokens=20))
    assert bench.texts["a"] == bench.runner.greedy(PROMPT, 20)


@pytest.mark.parametrize("step", range(6))
def test_a_request_is_the_same_after_preemption_at_any_step(step: int) -> None:
    """[49]"""
    bench = Bench(FakeRunner(max_step_tokens=8))
    bench.submit(make_submit("a", PROMPT, max_tokens=6))
    for _ in range(step):
        bench.step()
    bench.preempt()
    bench.run()
    assert bench.texts["a"] == bench.runner.greedy(PROMPT, 6)


@pytest.mark.parametrize("step", range(6))
def test_requests_are_the_same_after_all_keys_and_values_were_lost(step: int) -> None:
    bench = Bench(FakeRunner(max_step_tokens=8))
    bench.complete(make_submit("before", PROMPT, max_tokens=6))
    for name, length in (("a", 13), ("b", 9)):
        bench.submit(make_submit(name, PROMPT[:length], max_tokens=6))
    for _ in range(step):
        bench.step()
    bench.lose_cache()
    bench.run()
    for name, length in (("a", 13), ("b", 9)):
        assert bench.texts[name] == bench.runner.greedy(PROMPT[:length], 6)


@pytest.mark.parametrize("length", range(1, 14))
def test_a_request_is_the_same_after_any_prefix_hit(length: int) -> None:
    """[42]"""
    bench = Bench(FakeRunner(block_size=3))
    bench.complete(make_submit("before", PROMPT[:length], max_tokens=1))
    bench.complete(make_submit("a", PROMPT, max_tokens=6))
    assert bench.texts["a"] == bench.runner.greedy(PROMPT, 6)


@dataclass(frozen=True)
class Arrival:
    prompt: list[int]
    max_tokens: int
    salt: str
    tenant: str
    priority: int


@dataclass
class Schedule:
    """Events by step number."""

    arrivals: dict[int, list[Arrival]] = field(default_factory=dict)
    aborts: dict[int, list[int]] = field(default_factory=dict)  # by number of the arrival
    preemptions: set[int] = field(default_factory=set)
    aborted_during_step: dict[int, int] = field(default_factory=dict)


@st.composite
def arrival(draw: st.DrawFn) -> Arrival:
    stem = draw(st.sampled_from(STEMS))
    tail = draw(st.lists(st.integers(0, 3), min_size=1, max_size=14))
    return Arrival(
        stem[: draw(st.integers(0, len(stem)))] + tail,
        draw(st.integers(1, 12)),
        draw(st.sampled_from("--x")),
        draw(st.sampled_from("abc")),
        draw(st.integers(-2, 2)),
    )


STEPS = st.integers(0, 16)
SCHEDULES = st.builds(
    Schedule,
    arrivals=st.dictionaries(STEPS, st.lists(arrival(), min_size=1, max_size=5), min_size=1, max_size=5),
    aborts=st.dictionaries(STEPS, st.lists(st.integers(0, 9), max_size=3), max_size=3),
    preemptions=st.sets(STEPS, max_size=4),
    aborted_during_step=st.dictionaries(STEPS, st.integers(0, 9), max_size=3),
)


def play(bench: Bench, schedule: Schedule) -> dict[str, Submit]:
    """Run the schedule until every request has ended; the accepted requests."""
    accepted: dict[str, Submit] = {}
    num_arrived = 0
    for step in range(1200):
        for arriving in schedule.arrivals.get(step, []):
            submit = make_submit(
                f"r{num_arrived}",
                arriving.prompt,
                salt=arriving.salt,
                tenant=arriving.tenant,
                priority=arriving.priority,
                max_tokens=arriving.max_tokens,
            )
            num_arrived += 1
            try:
                bench.submit(submit)
            except ContextLengthError:
                assert len(submit.prompt) >= bench.scheduler.max_context
            else:
                accepted[submit.request_id] = submit
        for number in schedule.aborts.get(step, []):
            bench.abort(f"r{number}")
        if step in schedule.preemptions:
            bench.preempt()
        if bench.scheduler.has_work:
            during = schedule.aborted_during_step.get(step)
            assert bench.step(abort_during=None if during is None else f"r{during}").num_tokens > 0
        elif step > 16:
            return accepted
    raise AssertionError(f"no end: {bench.scheduler.stats}")


@settings(max_examples=300)
@given(
    schedule=SCHEDULES,
    block_size=st.integers(1, 5),
    pool_tokens=st.integers(16, 90),
    beyond=st.integers(0, 20),
    max_step_tokens=st.integers(3, 40),
    max_running=st.integers(1, 8),
    target_s=st.sampled_from([1e-9, 1e9]),
    fail_calls=st.sets(st.integers(1, 12), max_size=2),
)
def test_any_schedule_gives_each_request_its_own_tokens_and_one_end(
    schedule: Schedule,
    block_size: int,
    pool_tokens: int,
    beyond: int,
    max_step_tokens: int,
    max_running: int,
    target_s: float,
    fail_calls: set[int],
) -> None:
    """[42, 43, 49, 50, 51, 52]"""
    runner = FakeRunner(
        num_blocks=-(-pool_tokens // block_size) + beyond,
        num_resident=-(-pool_tokens // block_size),
        block_size=block_size,
        max_step_tokens=max_step_tokens,
        max_context=48,
        fail_calls=fail_calls,
    )
    bench = Bench(runner, target_s=target_s, max_running=min(max_running, max_step_tokens))
    accepted = play(bench, schedule)
    event(f"preempted: {bench.scheduler.num_preemptions > 0}, hit: {bench.pool.num_hit_tokens > 0}")
    assert bench.pool.num_free == bench.pool.num_resident
    for name, submit in accepted.items():
        (finished,) = bench.ends[name]
        sent = bench.texts[name]
        assert sent == runner.greedy(submit.prompt, len(sent))
        assert finished.usage.completion_tokens == len(sent)
        assert finished.usage.cached_tokens < len(submit.prompt)
        if finished.reason == "length":
            assert len(sent) == min(submit.sampling.max_tokens, bench.scheduler.max_context - len(submit.prompt))
        else:
            assert finished.reason == "abort"
