import pytest
from isotherm.daemon.errors import ContextLengthError, InvalidRequestError
from support.fake_runner import FakeRunner
from support.serving import Bench, make_submit


def test_a_request_gets_the_models_greedy_tokens() -> None:
    bench = Bench()
    finished = bench.complete(make_submit("a", [1, 2, 3], max_tokens=5))
    assert bench.texts["a"] == bench.runner.greedy([1, 2, 3], 5)
    assert (finished.reason, finished.stop_token) == ("length", None)
    assert (finished.usage.prompt_tokens, finished.usage.cached_tokens, finished.usage.completion_tokens) == (3, 0, 5)


def test_a_long_prompt_is_computed_in_chunks() -> None:
    bench = Bench(FakeRunner(max_step_tokens=8))
    bench.submit(make_submit("a", list(range(20)), max_tokens=1))
    assert [(chunk.start, len(chunk.tokens), chunk.sample) for _ in range(3) for chunk in bench.step().chunks] == [
        (0, 8, False),
        (8, 8, False),
        (16, 4, True),
    ]


def test_decoders_get_their_token_in_each_step_beside_a_prefill() -> None:
    bench = Bench(FakeRunner(max_step_tokens=8))
    bench.submit(make_submit("a", [1], max_tokens=20))
    bench.step()
    bench.submit(make_submit("b", list(range(30)), max_tokens=1))
    assert [[len(chunk.tokens) for chunk in bench.step().chunks] for _ in range(3)] == [[1, 7]] * 3


def test_prefill_beside_decoders_is_sized_by_time() -> None:
    bench = Bench(FakeRunner(max_step_tokens=64), target_s=4.3)
    bench.budget.observe(64, 0, 6.4)  # 0.1 s a token
    bench.submit(make_submit("a", [1], max_tokens=20))
    bench.step()
    bench.submit(make_submit("b", [2] * 60, max_tokens=1))
    assert [len(chunk.tokens) for chunk in bench.step().chunks] == [1, 32]


def test_eos_is_counted_but_not_sent() -> None:
    bench = Bench()
    tokens = bench.runner.greedy([1, 2], 3)
    finished = bench.complete(make_submit("a", [1, 2], eos=frozenset(tokens[2:]), max_tokens=9))
    assert bench.texts["a"] == tokens[:2]
    assert (finished.reason, finished.stop_token, finished.usage.completion_tokens) == ("stop", tokens[2], 3)


def test_ignore_eos_leaves_stop_token_ids_in_force() -> None:
    bench = Bench()
    tokens = bench.runner.greedy([1, 2], 4)
    submit = make_submit(
        "a", [1, 2], eos=frozenset(tokens[1:2]), ignore_eos=True, stop_token_ids=frozenset(tokens[3:]), max_tokens=9
    )
    finished = bench.complete(submit)
    assert bench.texts["a"] == tokens[:3]
    assert finished.stop_token == tokens[3]


def test_no_token_stops_before_min_tokens() -> None:
    bench = Bench()
    tokens = bench.runner.greedy([1, 2], 6)
    finished = bench.complete(make_submit("a", [1, 2], eos=frozenset(tokens), min_tokens=4, max_tokens=9))
    assert bench.texts["a"] == tokens[:4]
    assert finished.stop_token == tokens[4]


def test_a_stop_token_at_max_tokens_is_a_stop() -> None:
    bench = Bench()
    tokens = bench.runner.greedy([1, 2], 3)
    finished = bench.complete(make_submit("a", [1, 2], eos=frozenset(tokens[2:]), max_tokens=3))
    assert finished.reason == "stop"


def test_a_full_context_ends_with_length() -> None:
    """[48]"""
    bench = Bench(FakeRunner(max_context=10))
    finished = bench.complete(make_submit("a", [1] * 7, max_tokens=100))
    assert (finished.reason, finished.usage.completion_tokens) == ("length", 3)


def test_a_full_pool_ends_a_lone_request_with_length() -> None:
    """[52]"""
    bench = Bench(FakeRunner(num_blocks=3, block_size=4))
    finished = bench.complete(make_submit("a", [1] * 7, max_tokens=100))
    assert (finished.reason, finished.usage.completion_tokens) == ("length", 5)


def test_an_exact_repeat_recomputes_less_than_a_block_and_one_token() -> None:
    """[74]"""
    bench = Bench(FakeRunner(block_size=4))
    prompt = list(range(22))
    bench.complete(make_submit("a", prompt, max_tokens=1))
    before = bench.runner.num_tokens
    finished = bench.complete(make_submit("b", prompt, max_tokens=1))
    assert finished.usage.cached_tokens == 20
    assert bench.runner.num_tokens - before == 2
    assert bench.texts["b"] == bench.texts["a"]


def test_a_repeat_of_whole_blocks_recomputes_one_block() -> None:
    """[74]"""
    bench = Bench(FakeRunner(block_size=4))
    prompt = list(range(20))
    bench.complete(make_submit("a", prompt, max_tokens=1))
    assert bench.complete(make_submit("b", prompt, max_tokens=1)).usage.cached_tokens == 16


def test_the_next_turn_of_a_talk_reuses_the_answer() -> None:
    """[73]"""
    bench = Bench(FakeRunner(block_size=4))
    prompt = list(range(10))
    bench.complete(make_submit("a", prompt, max_tokens=7))
    follow_up = [*prompt, *bench.texts["a"], 5, 6]
    assert bench.complete(make_submit("b", follow_up, max_tokens=1)).usage.cached_tokens == 16


def test_equal_prompts_that_arrive_together_are_computed_once() -> None:
    bench = Bench(FakeRunner(max_step_tokens=8, block_size=4))
    prompt = list(range(22))
    for name in "abc":
        bench.submit(make_submit(name, prompt, max_tokens=1))
    bench.run()
    assert bench.runner.num_tokens == 22 + 2 + 2
    assert [bench.ends[name][0].usage.cached_tokens for name in "abc"] == [0, 20, 20]
    assert bench.texts["a"] == bench.texts["b"] == bench.texts["c"] == bench.runner.greedy(prompt, 1)


def test_a_prompt_does_not_wait_for_anothers_different_block() -> None:
    bench = Bench(FakeRunner(block_size=4))
    bench.submit(make_submit("a", [1, 2, 3, 4, 5], max_tokens=1))
    bench.submit(make_submit("b", [1, 2, 3, 9, 5], max_tokens=1))
    assert len(bench.step().chunks) == 2


def test_another_salt_reuses_nothing() -> None:
    bench = Bench()
    bench.complete(make_submit("a", list(range(20)), max_tokens=1, salt="alice"))
    assert bench.complete(make_submit("b", list(range(20)), max_tokens=1, salt="bob")).usage.cached_tokens == 0


def test_a_retry_finds_what_an_aborted_prefill_computed() -> None:
    """[71]"""
    bench = Bench(FakeRunner(max_step_tokens=8, block_size=4))
    prompt = list(range(40))
    bench.submit(make_submit("a", prompt, max_tokens=1))
    bench.step()
    bench.step(abort_during="a")
    assert bench.complete(make_submit("b", prompt, max_tokens=1)).usage.cached_tokens == 16
    assert bench.texts["b"] == bench.runner.greedy(prompt, 1)


def preempting_bench() -> Bench:
    """Two requests whose answers do not fit together: 'b' has been preempted once."""
    bench = Bench(FakeRunner(num_blocks=6, block_size=4))
    bench.submit(make_submit("a", [1] * 7, max_tokens=12))
    bench.submit(make_submit("b", [2] * 7, max_tokens=12))
    while bench.scheduler.num_preemptions == 0:
        bench.step()
    return bench


def test_the_request_admitted_last_is_preempted_and_keeps_its_output() -> None:
    """[49, 50]"""
    bench = preempting_bench()
    assert bench.texts["b"]
    assert bench.scheduler.stats.num_waiting_tokens == 7 + len(bench.texts["b"])
    bench.run()
    for name, prompt in (("a", [1] * 7), ("b", [2] * 7)):
        assert bench.texts[name] == bench.runner.greedy(prompt, 12)


def test_recompute_after_preemption_is_not_reported_as_cached() -> None:
    """[73]"""
    bench = preempting_bench()
    bench.run()
    (finished,) = bench.ends["b"]
    assert finished.usage.cached_tokens == 0


def test_a_preempted_request_returns_before_new_ones() -> None:
    bench = Bench(FakeRunner(num_blocks=6, block_size=4), max_running=2)
    for n, name in enumerate("abc"):
        bench.submit(make_submit(name, [n] * 7, max_tokens=12))
    order = [chunk.request_id for _ in range(60) if bench.scheduler.has_work for chunk in bench.step().chunks]
    assert bench.scheduler.num_preemptions > 0
    assert order[order.index("c") - 1] == "b"


def test_a_prompt_waits_until_each_running_request_can_still_grow() -> None:
    """[50]"""
    bench = Bench(FakeRunner(num_blocks=4, block_size=4))
    bench.submit(make_submit("a", [1] * 5, max_tokens=7))
    bench.step()
    bench.submit(make_submit("b", [2] * 8, max_tokens=1))
    assert [chunk.request_id for chunk in bench.step().chunks] == ["a"]
    bench.run()
    assert bench.scheduler.num_preemptions == 0


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_abort_frees_a_queued_prefilling_or_decoding_request(steps: int) -> None:
    bench = Bench(FakeRunner(max_step_tokens=8))
    bench.submit(make_submit("a", [1] * 16, max_tokens=50))
    for _ in range(steps):
        bench.step()
    bench.abort("a")
    assert [finished.reason for finished in bench.ends["a"]] == ["abort"]
    assert bench.pool.num_free == bench.pool.num_blocks
    assert not bench.scheduler.has_work


def test_abort_frees_a_preempted_request() -> None:
    """[9]"""
    bench = preempting_bench()
    bench.abort("b")
    bench.run()
    assert [finished.reason for finished in bench.ends["b"]] == ["abort"]
    assert bench.pool.num_free == bench.pool.num_blocks


def test_blocks_of_a_request_aborted_during_a_step_are_held_until_its_end() -> None:
    bench = Bench()
    bench.submit(make_submit("a", [1] * 6, max_tokens=5))
    plan = bench.scheduler.schedule()
    bench.abort("a")
    assert bench.pool.num_free == bench.pool.num_blocks - 2
    assert bench.scheduler.commit(plan, [0], 1.0) == []
    bench.scheduler.check_integrity()
    assert bench.pool.num_free == bench.pool.num_blocks


def test_a_second_abort_and_an_unknown_id_are_nothing() -> None:
    bench = Bench()
    bench.submit(make_submit("a", [1], max_tokens=5))
    assert bench.scheduler.abort("a") is not None
    assert bench.scheduler.abort("a") is None
    assert bench.scheduler.abort("never") is None


def test_a_stop_string_ends_with_stop() -> None:
    bench = Bench()
    bench.submit(make_submit("a", [1], max_tokens=5))
    bench.step()
    finished = bench.scheduler.abort("a", "stop")
    assert finished is not None
    assert (finished.reason, finished.usage.completion_tokens) == ("stop", 1)


def test_a_failed_step_can_be_repeated() -> None:
    bench = Bench(FakeRunner(fail_calls={2}))
    bench.submit(make_submit("a", [1, 2, 3], max_tokens=4))
    bench.run()
    assert bench.runner.num_calls == 5
    assert bench.texts["a"] == bench.runner.greedy([1, 2, 3], 4)


def test_discarding_a_step_frees_what_was_aborted_during_it() -> None:
    bench = Bench()
    bench.submit(make_submit("a", [1, 2, 3], max_tokens=4))
    plan = bench.scheduler.schedule()
    bench.abort("a")
    bench.scheduler.discard(plan)
    bench.scheduler.check_integrity()
    assert bench.pool.num_free == bench.pool.num_blocks


def test_a_prompt_is_admitted_only_when_all_of_it_fits() -> None:
    """[50]"""
    bench = Bench(FakeRunner(num_blocks=8, block_size=4, max_step_tokens=8))
    bench.submit(make_submit("a", [1] * 15, max_tokens=1))
    bench.submit(make_submit("b", [2] * 20, max_tokens=1))
    assert [chunk.request_id for chunk in bench.step().chunks] == ["a"]
    assert bench.scheduler.stats.num_running == 1
    bench.run()
    assert bench.scheduler.num_preemptions == 0


def test_nobody_overtakes_a_long_prompt_that_waits_for_room() -> None:
    bench = Bench(FakeRunner(num_blocks=8, block_size=4))
    bench.submit(make_submit("a", [1] * 15, max_tokens=3))
    bench.submit(make_submit("long", [2] * 24, max_tokens=1))
    bench.submit(make_submit("short", [3], max_tokens=1))
    order = [chunk.request_id for _ in range(5) for chunk in bench.step().chunks]
    assert order.index("long") < order.index("short")


def test_a_flood_of_one_tenant_leaves_the_next_turn_to_another() -> None:
    bench = Bench(FakeRunner(max_context=4000, num_blocks=1000), max_running=1)
    for n in range(5):
        bench.submit(make_submit(f"flood {n}", [n] * 1500, tenant="flood", max_tokens=1))
    bench.submit(make_submit("guest", [9], tenant="guest", max_tokens=1))
    order = [chunk.request_id for _ in range(100) for chunk in bench.step().chunks]
    assert list(dict.fromkeys(order))[:2] == ["flood 0", "guest"]


def test_an_urgent_request_is_admitted_before_older_ones() -> None:
    bench = Bench(max_running=1)
    bench.submit(make_submit("plain", [1], max_tokens=1))
    bench.submit(make_submit("urgent", [2], max_tokens=1, priority=-1))
    assert [chunk.request_id for _ in range(2) for chunk in bench.step().chunks] == ["urgent", "plain"]


def test_max_running_bounds_a_step() -> None:
    bench = Bench(max_running=2)
    for name in "abc":
        bench.submit(make_submit(name, [1, 2], max_tokens=2))
    assert len(bench.step().chunks) == 2


def test_a_prompt_beyond_the_context_is_refused() -> None:
    bench = Bench(FakeRunner(max_context=10))
    with pytest.raises(ContextLengthError, match=r"has 10 tokens.*at most 10; shorten it to 9"):
        bench.submit(make_submit("a", [1] * 10))


def test_a_prompt_beyond_the_pool_is_refused() -> None:
    bench = Bench(FakeRunner(num_blocks=2, block_size=4))
    with pytest.raises(ContextLengthError, match="at most 8"):
        bench.submit(make_submit("a", [1] * 8))


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="prompt is empty"):
        Bench().submit(make_submit("a", []))


def test_an_id_in_use_is_refused() -> None:
    bench = Bench()
    bench.submit(make_submit("a", [1]))
    with pytest.raises(InvalidRequestError, match="'a' is already in use"):
        bench.submit(make_submit("a", [1]))


def test_a_preempted_request_waits_but_is_not_queued() -> None:
    bench = preempting_bench()
    bench.submit(make_submit("c", [3], max_tokens=1))
    stats = bench.scheduler.stats
    assert (stats.num_waiting, stats.queued) == (2, {"": (1, 1)})


def test_steps_do_not_overlap() -> None:
    bench = Bench()
    bench.submit(make_submit("a", [1]))
    bench.scheduler.schedule()
    with pytest.raises(RuntimeError, match="neither committed nor discarded"):
        bench.scheduler.schedule()


def test_a_step_is_committed_once() -> None:
    bench = Bench()
    bench.submit(make_submit("a", [1], max_tokens=3))
    plan = bench.scheduler.schedule()
    bench.scheduler.commit(plan, [0], 1.0)
    with pytest.raises(RuntimeError, match="not the step under way"):
        bench.scheduler.commit(plan, [0], 1.0)


def test_too_few_sampled_tokens_are_an_error() -> None:
    bench = Bench()
    bench.submit(make_submit("a", [1], max_tokens=3))
    with pytest.raises(RuntimeError, match="0 tokens were sampled for a plan that wants 1"):
        bench.scheduler.commit(bench.scheduler.schedule(), [], 1.0)


def test_stats_count_what_happened() -> None:
    bench = Bench()
    bench.complete(make_submit("a", list(range(20)), max_tokens=1))
    bench.complete(make_submit("b", list(range(20)), max_tokens=1))
    bench.submit(make_submit("c", [7] * 5))
    stats = bench.scheduler.stats
    assert (stats.num_running, stats.num_waiting, stats.num_waiting_tokens) == (0, 1, 5)
    assert (stats.num_prefix_queried_tokens, stats.num_prefix_hit_tokens) == (40, 16)
    assert stats.num_free_blocks == stats.num_blocks


def test_at_least_one_request_must_be_able_to_run() -> None:
    with pytest.raises(ValueError, match="max_running 0"):
        Bench(max_running=0)
