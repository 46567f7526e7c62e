"""The scheduler's side of tokens that follow by themselves: they are computed at once, and nobody waits for it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isotherm.daemon.scheduler import Outcome
from isotherm.daemon.sequence import MAX_FORCED, Follow
from isotherm.daemon.step import StepPlan
from support.fake_runner import FakeRunner
from support.serving import Bench, make_submit


def commit(bench: Bench, plan: StepPlan, follows: dict[str, Follow], token: int = 1) -> list[Outcome]:
    names = [chunk.request_id for chunk in plan.chunks if chunk.sample]
    bench.runner.execute(plan)
    by_row = {row: follows[name] for row, name in enumerate(names) if name in follows}
    outcomes = bench.scheduler.commit(plan, [token] * len(names), 1.0, by_row)
    bench.scheduler.check_integrity()
    return outcomes


def started(bench: Bench, *names: str, max_tokens: int = 50) -> None:
    for name in names:
        bench.submit(make_submit(name, [1, 2, 3], max_tokens=max_tokens))
    commit(bench, bench.scheduler.schedule(), {})


def test_they_come_as_tokens_and_are_computed_in_the_next_step() -> None:
    bench = Bench()
    started(bench, "a")
    outcomes = commit(bench, bench.scheduler.schedule(), {"a": Follow((7, 8, 9))})
    assert [(outcome.token_id, outcome.row) for outcome in outcomes] == [(1, 0), (7, None), (8, None), (9, None)]
    (chunk,) = bench.scheduler.schedule().chunks
    assert (chunk.tokens, chunk.sample) == ([1, 7, 8, 9], True)


def test_a_stream_does_not_wait_for_a_long_prompt_before_it() -> None:
    bench = Bench(FakeRunner(max_step_tokens=24, max_context=200))
    bench.submit(make_submit("long", [5] * 150, max_tokens=1))
    bench.scheduler.budget.max_tokens = 8
    commit(bench, bench.scheduler.schedule(), {})
    bench.submit(make_submit("stream", [1, 2], max_tokens=50))
    while (plan := bench.scheduler.schedule()).chunks[-1].request_id != "stream":
        commit(bench, plan, {})
    commit(bench, plan, {"stream": Follow(tuple(range(10)))})
    chunks = {chunk.request_id: chunk for chunk in bench.scheduler.schedule().chunks}
    assert len(chunks["stream"].tokens) == 11 and chunks["stream"].sample


def test_every_stream_gets_a_token_when_there_is_no_room_for_all_that_is_forced() -> None:
    bench = Bench(FakeRunner(max_step_tokens=16), max_running=4)
    started(bench, "a", "b", "c", "d")
    plan = bench.scheduler.schedule()
    commit(bench, plan, {name: Follow(tuple(range(9))) for name in "abcd"})
    plan = bench.scheduler.schedule()
    assert [len(chunk.tokens) for chunk in plan.chunks] == [10, 4, 1, 1]
    assert [chunk.sample for chunk in plan.chunks] == [True, False, False, False]


def test_they_count_as_decoded_when_the_time_of_a_prompt_is_learned() -> None:
    bench = Bench()
    started(bench, "a")
    before = bench.budget.seconds_per_prefill_token
    commit(bench, bench.scheduler.schedule(), {"a": Follow((7,) * MAX_FORCED)})
    commit(bench, bench.scheduler.schedule(), {})
    assert bench.budget.seconds_per_prefill_token == before


@pytest.mark.parametrize(
    ("follow", "sent", "reason"),
    [
        (Follow((7, 8), complete=True), [1, 7, 8], "stop"),
        (Follow((), complete=True), [1], "stop"),
        (Follow((7, 8, 9, 10, 11)), [1, 7, 8, 9], "length"),
        (Follow((7, 8, 9, 10, 11), complete=True), [1, 7, 8, 9], "length"),
        (Follow((7, 8, 9), complete=True), [1, 7, 8, 9], "stop"),
    ],
)
def test_the_end_comes_where_it_must(follow: Follow, sent: list[int], reason: str) -> None:
    bench = Bench()
    started(bench, "a", max_tokens=5)
    outcomes = commit(bench, bench.scheduler.schedule(), {"a": follow})
    assert [outcome.token_id for outcome in outcomes] == sent
    assert [outcome.finished is not None for outcome in outcomes] == [False] * (len(sent) - 1) + [True]
    finished = outcomes[-1].finished
    assert finished is not None and (finished.reason, finished.usage.completion_tokens) == (reason, 1 + len(sent))


@settings(max_examples=60)
@given(
    follows=st.lists(st.lists(st.integers(0, 9), max_size=MAX_FORCED), min_size=1, max_size=12),
    preempt_at=st.sets(st.integers(0, 30), max_size=3),
    max_step_tokens=st.integers(4, 64),
    num_blocks=st.integers(40, 64),
)
def test_what_is_computed_after_them_is_what_would_be_without(
    follows: list[list[int]], preempt_at: set[int], max_step_tokens: int, num_blocks: int
) -> None:
    """Greedy tokens and forced ones in turn, whatever is cut, mixed and computed again: as the plain model says."""
    runner = FakeRunner(num_blocks=num_blocks, max_step_tokens=max_step_tokens, max_context=150)
    bench, oracle = Bench(runner, max_running=3), FakeRunner()
    prompts = {"a": [1, 2, 3], "b": [1, 2, 3, 4, 5], "c": [9]}
    texts: dict[str, list[int]] = {name: [] for name in prompts}
    expected: dict[str, list[int]] = {}
    for name, prompt in prompts.items():
        bench.submit(make_submit(name, prompt, max_tokens=60))
        known = list(prompt)
        for follow in [*follows, *[[]] * 60]:
            known += [*oracle.greedy(known, 1), *follow]
        expected[name] = known[len(prompt) :][:60]
    turns = dict.fromkeys(prompts, 0)
    for step in range(300):
        if not bench.scheduler.has_work:
            break
        if step in preempt_at:
            bench.preempt()
        plan = bench.scheduler.schedule()
        logits = runner.execute(plan)
        names = [chunk.request_id for chunk in plan.chunks if chunk.sample]
        by_row = {row: Follow(tuple(follows[turns[n]])) for row, n in enumerate(names) if turns[n] < len(follows)}
        for name in names:
            turns[name] += 1
        for outcome in bench.scheduler.commit(plan, [int(row.argmax()) for row in logits], 1.0, by_row):
            assert outcome.token_id is not None
            texts[outcome.request_id].append(outcome.token_id)
        bench.scheduler.check_integrity()
    assert texts == expected
