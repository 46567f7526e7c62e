"""The engine thread on a fake model: each accepted request ends once, whatever fails."""

import asyncio
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isotherm.daemon.client import EngineClient
from isotherm.daemon.errors import EngineError, InvalidRequestError, OverloadedError
from isotherm.daemon.messages import Failed, Finished, FromEngine
from isotherm.daemon.scheduler import Scheduler
from support.engine_runs import (
    GatedRunner,
    PoisonRunner,
    WildSampler,
    assert_nothing_left,
    make_engine,
    messages_of,
    request,
    running,
    tokens_of,
    until,
)
from support.fake_runner import FakeRunner


def test_a_request_gets_the_models_tokens_and_one_end():
    engine = make_engine()
    with running(engine) as client:
        *tokens, end = messages_of(client.submit(request(max_tokens=7)))
        assert tokens_of(tokens) == FakeRunner().greedy((1, 2, 3), 7)
        assert end.reason == "length"
        assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (3, 7)
        assert_nothing_left(engine)


def test_an_eos_token_ends_the_request_and_is_not_sent():
    expected = FakeRunner().greedy((1, 2, 3), 5)
    place = expected.index(expected[3])
    with running(make_engine()) as client:
        *tokens, end = messages_of(client.submit(request(eos=(expected[3],))))
    assert tokens_of(tokens) == expected[:place]
    assert (end.reason, end.stop_token, end.usage.completion_tokens) == ("stop", expected[3], place + 1)


def test_min_tokens_keeps_the_sampler_from_eos():
    eos = FakeRunner().greedy((1, 2, 3), 1)[0]
    with running(make_engine()) as client:
        *tokens, end = messages_of(client.submit(request(eos=(eos,), min_tokens=4, max_tokens=4)))
    assert len(tokens) == 4 and eos not in tokens_of(tokens) and end.reason == "length"


def test_there_are_logprobs_for_each_token():
    with running(make_engine()) as client:
        *tokens, _ = messages_of(client.submit(request(logprobs=2)))
    assert all(token.logprobs.top[0] == (token.token_id, token.logprobs.logprob) for token in tokens)
    assert len({token.logprobs for token in tokens}) == len(tokens)


def test_a_seeded_text_does_not_depend_on_the_load():
    """[31]"""
    sampled = {"temperature": 1.0, "seed": 5, "max_tokens": 12}
    with running(make_engine()) as client:
        alone = tokens_of(messages_of(client.submit(request("alone", **sampled))))
    with running(make_engine(FakeRunner(num_blocks=24), max_running=6)) as client:
        others = [client.submit(request(f"r{i}", (i, i), temperature=1.0, max_tokens=20)) for i in range(10)]
        crowded = client.submit(request("crowded", **sampled))
        assert tokens_of(messages_of(crowded)) == alone
        for other in others:
            messages_of(other)


def test_the_async_side_reads_while_the_engine_runs():
    async def run(client: EngineClient) -> list[list[FromEngine]]:
        async def read(name: str) -> list[FromEngine]:
            return [message async for message in client.submit(request(name))]

        return await asyncio.gather(*(read(f"r{i}") for i in range(10)))

    expected = FakeRunner().greedy((1, 2, 3), 5)
    with running(make_engine()) as client:
        assert all(tokens_of(messages) == expected for messages in asyncio.run(run(client)))


def test_a_flood_on_a_tiny_pool_ends_in_as_many_answers():
    """[50, 52]"""
    engine = make_engine(FakeRunner(num_blocks=8, max_context=24))
    boxes = [engine.client.submit(request(f"r{i}", (i % 7, i % 5, 1), max_tokens=12)) for i in range(200)]
    with running(engine):
        for i, box in enumerate(boxes):
            assert tokens_of(messages_of(box)) == FakeRunner().greedy((i % 7, i % 5, 1), 12)
        assert_nothing_left(engine)
        assert engine.stats().failed_steps == 0 and engine.stats().preemptions > 0


def test_a_full_queue_refuses_at_once_while_a_step_runs():
    """[53]"""
    runner = GatedRunner()
    with running(make_engine(runner, max_queued=4)) as client:
        boxes = [client.submit(request("running"))]
        runner.wait_for_step()
        boxes += [client.submit(request(f"r{i}")) for i in range(4)]
        with pytest.raises(OverloadedError):
            client.submit(request("too many"))
        runner.let_go()
        assert all(isinstance(messages_of(box)[-1], Finished) for box in boxes)
        client.check_open()


def test_a_failed_step_fails_its_requests_and_the_loop_goes_on():
    engine = make_engine(FakeRunner(fail_calls={2}))
    with running(engine) as client:
        end = messages_of(client.submit(request("a")))[-1]
        assert isinstance(end.error, EngineError) and "injected failure of call 2" in str(end.error)
        assert tokens_of(messages_of(client.submit(request("b")))) == FakeRunner().greedy((1, 2, 3), 5)
        assert_nothing_left(engine)
        assert engine.stats().state == "ready" and engine.stats().failed_steps == 1
        assert engine.events.counts() == {"step_failed": 1}


def test_a_failed_step_spares_requests_that_were_not_in_it():
    runner = GatedRunner(fail_calls={1})
    with running(make_engine(runner)) as client:
        failing = client.submit(request("a"))
        runner.wait_for_step()
        waiting = client.submit(request("b"))
        runner.let_go()
        assert isinstance(messages_of(failing)[-1], Failed)
        assert isinstance(messages_of(waiting)[-1], Finished)


def test_failures_in_a_row_fail_the_engine_with_the_reason():
    runner = GatedRunner(fail_calls={1, 2})
    engine = make_engine(runner, max_failures=2, max_running=1)
    with running(engine) as client:
        boxes = [client.submit(request(f"r{i}")) for i in range(4)]
        runner.let_go()
        assert all(isinstance(messages_of(box)[-1], Failed) for box in boxes)
        until(lambda: runner.closed)
        assert engine.stats().state == "failed"
        assert "2 steps in a row failed" in engine.stats().reason
        assert engine.events.counts() == {"step_failed": 2, "engine_failed": 1}
        with pytest.raises(EngineError, match="injected failure of call 2"):
            client.submit(request("late"))


def test_a_success_between_failures_starts_the_count_again():
    engine = make_engine(FakeRunner(fail_calls={1, 3, 5}), max_failures=2)
    with running(engine) as client:
        for i in range(3):
            assert isinstance(messages_of(client.submit(request(f"r{i}")))[-1], Failed)
        assert isinstance(messages_of(client.submit(request("last")))[-1], Finished)
    assert engine.stats().failed_steps == 3


def test_logits_of_a_wrong_shape_are_a_failed_step():
    class ShortRunner(FakeRunner):
        def execute(self, plan):
            return super().execute(plan)[:, :-1]

    with running(make_engine(ShortRunner())) as client:
        end = messages_of(client.submit(request()))[-1]
    assert "shape (1, 63) instead of (1, 64)" in str(end.error)


def test_broken_logits_fail_only_their_own_request():
    engine = make_engine(PoisonRunner())
    with running(engine) as client:
        bad, good = client.submit(request("bad")), client.submit(request("good", (4, 5)))
        end = messages_of(bad)[-1]
        assert isinstance(end, Failed) and isinstance(end.error, EngineError) and "NaN" in str(end.error)
        assert tokens_of(messages_of(good)) == FakeRunner().greedy((4, 5), 5)
        assert_nothing_left(engine)
        assert engine.stats().failed_steps == 0


def test_a_token_outside_the_vocabulary_fails_only_its_own_request(monkeypatch):
    """[7] The step that it would be part of fails all requests in it."""
    monkeypatch.setattr("isotherm.daemon.engine.Sampler", WildSampler)
    engine = make_engine()
    with running(engine) as client:
        wild, good = client.submit(request("wild", seed=13)), client.submit(request("good", (4, 5)))
        assert "token 64 of 64" in str(messages_of(wild)[-1].error)
        assert tokens_of(messages_of(good)) == FakeRunner().greedy((4, 5), 5)
        assert_nothing_left(engine)
        assert engine.stats().failed_steps == 0


def test_a_bug_in_the_loop_still_ends_every_request(monkeypatch):
    runner = GatedRunner()
    engine = make_engine(runner, max_running=1)
    monkeypatch.setattr(Scheduler, "commit", lambda *_: 1 / 0)
    with running(engine) as client:
        boxes = [client.submit(request("a"))]
        runner.wait_for_step()
        boxes += [client.submit(request("b")), client.submit(request("c"))]
        runner.let_go()
        for box in boxes:
            assert "ZeroDivisionError" in str(messages_of(box)[-1].error)
        until(lambda: runner.closed)
        assert engine.stats().state == "failed"


def test_a_request_that_the_scheduler_refuses_gets_its_error():
    engine = make_engine()
    engine.client.max_context = 10_000  # a door that lets too much in
    with running(engine) as client:
        end = messages_of(client.submit(request(prompt=(1,) * 256)))[-1]
    assert "the prompt has 256 tokens" in str(end.error)


def test_an_unexpected_error_at_the_queue_is_an_engine_error(monkeypatch):
    monkeypatch.setattr(Scheduler, "submit", lambda *_: 1 / 0)
    engine = make_engine()
    with running(engine) as client:
        end = messages_of(client.submit(request()))[-1]
    assert isinstance(end.error, EngineError)


@pytest.mark.parametrize("state", ["in the inbox", "waiting", "in a step", "preempted"])
def test_an_abort_ends_a_request_in_any_state_and_frees_its_blocks(state):
    """[9]"""
    runner = GatedRunner(num_blocks=8, max_context=32)
    engine = make_engine(runner, max_running=2 if state == "preempted" else 1)
    first, second = request("first", max_tokens=28), request("second", (4, 5), max_tokens=28)
    with running(engine) as client:
        boxes = {"first": client.submit(first)}
        runner.wait_for_step()
        boxes["second"] = client.submit(second)
        if state != "in the inbox":
            runner.permits.release()
            runner.wait_for_step()  # the engine has taken `second`
        if state == "preempted":
            while not engine.stats().preemptions:
                runner.permits.release()
                runner.wait_for_step()
        victim = "first" if state == "in a step" else "second"
        client.abort(victim)
        runner.let_go()
        assert messages_of(boxes[victim])[-1].reason == "abort"
        other = second if victim == "first" else first
        assert tokens_of(messages_of(boxes[other.request_id])) == runner.greedy(other.prompt, 28)
        assert_nothing_left(engine)


def test_an_aborted_request_gets_no_token_after_its_abort_was_taken():
    runner = GatedRunner()
    with running(make_engine(runner)) as client:
        box = client.submit(request(max_tokens=100))
        runner.wait_for_step()
        client.abort("a")
        runner.let_go()
        assert len(tokens_of(messages_of(box))) == 1  # of the step under way


def test_a_text_that_met_a_stop_string_ends_as_stopped():
    runner = GatedRunner()
    engine = make_engine(runner)
    with running(engine) as client:
        box = client.submit(request(max_tokens=100))
        runner.wait_for_step()
        client.abort("a", "stop")
        runner.let_go()
        assert messages_of(box)[-1].reason == "stop"
        assert 'isotherm_request_finished_total{reason="stop"} 1.0' in engine.metrics.render().decode()


def test_aborting_twice_and_after_the_end_is_harmless():
    engine = make_engine()
    with running(engine) as client:
        box = client.submit(request(max_tokens=100))
        client.abort("a")
        client.abort("a")
        messages_of(box)
        client.abort("a")
        messages_of(client.submit(request("b")))
        assert_nothing_left(engine)


def test_an_id_can_be_used_again_after_its_end():
    with running(make_engine()) as client:
        assert tokens_of(messages_of(client.submit(request("a")))) == tokens_of(
            messages_of(client.submit(request("a")))
        )


def test_an_id_in_use_is_refused():
    runner = GatedRunner()
    with running(make_engine(runner)) as client:
        client.submit(request("a"))
        with pytest.raises(InvalidRequestError, match="already in use"):
            client.submit(request("a"))


def test_a_closed_event_loop_aborts_its_requests_and_spares_the_engine():
    runner = GatedRunner()
    engine = make_engine(runner)

    async def leave(client: EngineClient) -> None:
        client.submit(request(max_tokens=200))

    with running(engine) as client:
        asyncio.run(leave(client))
        runner.let_go()
        until(lambda: engine.stats().steps > 0 and not engine.stats().busy)
        assert_nothing_left(engine)
        assert engine.stats().steps < 200
        assert isinstance(messages_of(client.submit(request("next")))[-1], Finished)


def test_usage_and_metrics_agree():
    """[54, 56]"""
    engine = make_engine()
    with running(engine) as client:
        boxes = [client.submit(request(f"r{i}", (1, 2, 3, 4, 5, 6, 7, 8, i))) for i in range(4)]
        usages = [messages_of(box)[-1].usage for box in boxes]
        text = engine.metrics.render().decode()
    assert f"isotherm_generation_tokens_total {sum(u.completion_tokens for u in usages):.1f}" in text
    assert f"isotherm_prompt_tokens_total {sum(u.prompt_tokens for u in usages):.1f}" in text
    assert "isotherm_time_to_first_token_seconds_count 4.0" in text
    assert 'isotherm_request_finished_total{reason="length"} 4.0' in text


@settings(max_examples=30)
@given(
    fail_calls=st.sets(st.integers(1, 30), max_size=10),
    lengths=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 10)), min_size=1, max_size=12),
    aborted=st.sets(st.integers(0, 11)),
)
def test_whatever_steps_fail_each_request_ends_once_and_survivors_are_right(fail_calls, lengths, aborted):
    runner = FakeRunner(num_blocks=8, max_context=32, fail_calls=fail_calls)
    engine = make_engine(runner, max_failures=100, max_running=4)
    requests = [
        request(f"r{i}", tuple(range(i, i + length)), max_tokens=count) for i, (length, count) in enumerate(lengths)
    ]
    with running(engine) as client:
        boxes = [client.submit(each) for each in requests]
        for i in aborted:
            client.abort(f"r{i}")
        for each, box in zip(requests, boxes, strict=True):
            *tokens, end = messages_of(box)
            expected = runner.greedy(each.prompt, each.sampling.max_tokens)
            assert tokens_of(tokens) == expected[: len(tokens)]
            assert not isinstance(end, Finished) or end.reason == "abort" or len(tokens) == len(expected)
        assert_nothing_left(engine)


def test_threads_that_submit_and_abort_at_random_leave_nothing_behind():
    engine = make_engine(FakeRunner(num_blocks=12, max_context=40), max_queued=20)
    ends: list[FromEngine] = []
    refused: list[OverloadedError] = []

    def hammer(worker: int) -> None:
        dice = np.random.default_rng(worker)
        for i in range(25):
            name = f"{worker}-{i}"
            try:
                box = engine.client.submit(request(name, (worker, i % 3), max_tokens=int(dice.integers(1, 20))))
            except OverloadedError as error:
                refused.append(error)
                continue
            if dice.random() < 0.5:
                engine.client.abort(name)
            if dice.random() < 0.3:
                engine.client.abort(f"{worker - 1}-{i}")
            ends.append(messages_of(box)[-1])

    with running(engine):
        workers = [threading.Thread(target=hammer, args=(worker,)) for worker in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert len(ends) + len(refused) == 200
        assert all(isinstance(end, Finished) for end in ends)
        assert_nothing_left(engine)
