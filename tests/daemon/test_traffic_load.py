"""Load by streams and by rate, and what its answers come to. Time is virtual, so figures are exact."""

from itertools import count, pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from isotherm.daemon.prompts import Prompt
from isotherm.daemon.traffic.figures import Limits, figures, percentiles
from isotherm.daemon.traffic.load import Load, LoadError, LoadOptions
from isotherm.daemon.traffic.plot import draw_latencies
from isotherm.daemon.traffic.workload import Scale, Workload, body, fits_schema, scale_of
from support.timed_server import DONE, TimedServer, answers, said, used, words_of
from support.virtual_time import run

NOT_COUNTED = 2  # requests that size the prompts


def workload(**changes: Any) -> Workload:
    return Workload(**{"model": "m", "prompt": 50, "gen": 11} | changes)


def measured(server: TimedServer, *, asked: Workload | None = None, **options: Any) -> Load:
    async def work() -> Load:
        async with server.client() as client:
            load = Load(client, LoadOptions(workload=asked or workload(), **options), lambda *stage: None)
            await load.run()
            return load

    return run(work())


def test_streams_keep_that_many_requests_open() -> None:
    server = TimedServer()
    (point,) = measured(server, streams=(4,), requests=8, warm_up=0).points
    found = figures(point)
    assert server.most_open == 4
    assert (found.requests, found.seconds, found.in_flight) == (8, pytest.approx(4.0), pytest.approx(4.0))
    assert found.requests_s == pytest.approx(2.0)
    assert found.output_tok_s == pytest.approx(22.0)
    assert found.prompt_tok_s == pytest.approx(2 * 50)
    assert found.ttft_s is not None and found.ttft_s.p99 == pytest.approx(1.0)
    assert found.tpot_s is not None and found.tpot_s.p50 == pytest.approx(0.1)
    assert found.itl_s is not None and found.itl_s.count == 80
    assert found.e2e_s is not None and found.e2e_s.p50 == pytest.approx(2.0)


def test_each_number_of_streams_is_a_point_with_other_prompts() -> None:
    server = TimedServer()
    points = measured(server, streams=(1, 2), requests=2, warm_up=1).points
    assert [(point.streams, len(point.answers)) for point in points] == [(1, 2), (2, 2)]
    texts = [request["messages"][0]["content"] for request in server.bodies]
    assert len(set(texts)) == len(texts) == NOT_COUNTED + 2 * (1 + 2)


def test_each_point_has_the_same_lengths() -> None:
    server = TimedServer()
    measured(server, asked=workload(spread=0.8), streams=(1, 2), requests=4, warm_up=0)
    lengths = [(words_of(request), request["max_tokens"]) for request in server.bodies[NOT_COUNTED:]]
    assert lengths[:4] == lengths[4:]
    assert len(set(lengths)) == 4


def test_warm_up_is_sent_and_not_counted() -> None:
    slow = count(1)

    def script(request: dict[str, Any]) -> Any:
        return answers(request, first=60.0 if next(slow) <= NOT_COUNTED + 3 else 1.0)

    (point,) = measured(TimedServer(script), streams=(1,), requests=2, warm_up=3).points
    found = figures(point)
    assert found.ttft_s is not None and (found.ttft_s.count, found.ttft_s.p99) == (2, pytest.approx(1.0))


def test_requests_come_at_random_moments_whatever_is_open() -> None:
    server = TimedServer(lambda request: answers(request, first=50.0))
    (point,) = measured(server, rates=(10.0,), requests=400, warm_up=0).points
    gaps = [after - before for before, after in pairwise(server.moments[NOT_COUNTED:])]
    assert np.mean(gaps) == pytest.approx(0.1, rel=0.15)
    assert np.std(gaps) == pytest.approx(0.1, rel=0.15)  # as an exponential distribution has it
    assert server.most_open == 400
    assert figures(point).rate == 10.0


def test_the_same_seed_sends_the_same_at_the_same_moments() -> None:
    one, two, other = TimedServer(), TimedServer(), TimedServer()
    for server, seed in ((one, 1), (two, 1), (other, 2)):
        measured(server, asked=workload(seed=seed, spread=0.5), rates=(3.0,), requests=5)
    assert (one.bodies, one.moments) == (two.bodies, two.moments)
    assert one.moments != other.moments
    assert one.bodies != other.bodies


@pytest.mark.parametrize("pace", [{"streams": (2,)}, {"rates": (1.0,)}])
def test_a_duration_ends_sending_and_what_is_open_may_finish(pace: dict[str, Any]) -> None:
    (point,) = measured(TimedServer(), duration_s=5.0, warm_up=0, **pace).points
    assert len(point.answers) == point.sent > 2
    assert max(answer.due for answer in point.answers) < point.started + 5.0 < point.ended


@pytest.mark.parametrize(("pace", "requests"), [({"streams": (3,)}, 24), ({"rates": (5.0,)}, 64)])
def test_there_is_a_number_of_requests_without_one_being_named(pace: dict[str, Any], requests: int) -> None:
    (point,) = measured(TimedServer(), warm_up=0, **pace).points
    assert len(point.answers) == requests


def test_failures_are_counted_by_name_and_have_no_latency() -> None:
    turns = count(1)

    def script(request: dict[str, Any]) -> Any:
        turn = next(turns)
        if turn <= NOT_COUNTED or turn % 2:
            return answers(request)
        return httpx.Response(429, json={"error": {"message": f"full {turn}"}})

    (point,) = measured(TimedServer(script), streams=(1,), requests=6, warm_up=0).points
    found = figures(point)
    assert (found.requests, found.failures, found.details) == (3, {"status 429": 3}, {"status 429": "full 4"})
    assert found.ttft_s is not None and found.ttft_s.count == 3


def test_a_server_that_is_gone_is_not_flooded() -> None:
    turns = count(1)
    server = TimedServer(
        lambda request: answers(request) if next(turns) <= NOT_COUNTED else httpx.ConnectError("refused")
    )
    (point,) = measured(server, streams=(3,), duration_s=10.0, warm_up=0).points
    assert len(point.answers) == pytest.approx(300, abs=6)
    assert figures(point).failures == {"no connection": len(point.answers)}


def test_a_server_that_answers_nothing_is_refused_before_the_first_point() -> None:
    server = TimedServer(lambda request: httpx.Response(400, json={"error": {"message": "ignore_eos?"}}))
    with pytest.raises(LoadError, match=r"status 400: ignore_eos\?; .* add --no-ignore-eos"):
        measured(server, streams=(1,))


def test_prompts_have_the_wanted_tokens_by_the_servers_count() -> None:
    server = TimedServer()
    (point,) = measured(server, asked=workload(prompt=200), streams=(1,), requests=3, warm_up=0).points
    assert [answer.prompt_tokens for answer in point.answers] == [200] * 3


def test_without_the_servers_count_a_word_is_taken_for_a_token() -> None:
    server = TimedServer(lambda request: [1.0, said("a"), DONE])
    load = measured(server, streams=(1,), requests=1, warm_up=0)
    assert load.scale is None
    assert words_of(server.bodies[-1]) == 50
    found = figures(load.points[0])
    assert (found.without_usage, found.output_tok_s, found.tpot_s, found.tokens_per_piece) == (1, None, None, None)


def test_a_scale_that_makes_no_sense_is_not_used() -> None:
    assert scale_of([(16, 30), (144, 30)]) == Scale()


def test_prompts_share_their_first_words_and_no_others() -> None:
    asked = workload(prompt=60, shared_prefix=40)
    texts = [body(asked, Scale(), number, number)["messages"][0]["content"].split() for number in range(1, 9)]
    assert {len(text) for text in texts} == {60}
    assert len({tuple(text[:40]) for text in texts}) == 1
    assert len({tuple(text[40:50]) for text in texts}) == 8


def test_lengths_spread_around_the_wanted_ones() -> None:
    asked = workload(prompt=100, gen=20, spread=0.5)
    bodies = [body(asked, Scale(), number, number) for number in range(200)]
    words, tokens = ([words_of(each) for each in bodies], [each["max_tokens"] for each in bodies])
    assert (50 <= min(words) < 60, 140 < max(words) <= 150) == (True, True)
    assert (10 <= min(tokens) < 12, 28 < max(tokens) <= 30) == (True, True)


def test_prompts_of_people_are_asked_by_turns() -> None:
    talk = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Why?"}]
    server = TimedServer()
    asked = workload(prompts=(Prompt("a", "one"), Prompt("b", talk)))
    measured(server, asked=asked, streams=(1,), requests=4, warm_up=0)
    sent = [request["messages"] for request in server.bodies[NOT_COUNTED:]]
    assert sent.count(talk) == sent.count([{"role": "user", "content": "one"}]) == 2


def test_the_server_is_asked_for_usage_and_whole_length() -> None:
    request = body(workload(gen=7), Scale(), 1, 1)
    wanted = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 7, "ignore_eos": True}
    assert request | wanted == request
    assert "ignore_eos" not in body(workload(ignore_eos=False), Scale(), 1, 1)


def test_structured_answers_are_checked() -> None:
    request = body(workload(structured=True), Scale(), 1, 1)
    assert request["response_format"]["json_schema"]["strict"] is True
    assert "ignore_eos" not in request
    turns = count()

    def script(request: dict[str, Any]) -> Any:
        text = '{"name": "cup", "kind": "tool", "price": 3, "known": true}'[: None if next(turns) % 2 else -1]
        return [1.0, said(text), used(9, 20), DONE]

    (point,) = measured(TimedServer(script), asked=workload(structured=True), streams=(1,), requests=4).points
    assert figures(point, structured=True).valid_share == 0.5


@pytest.mark.parametrize(
    "text", ["", "[]", '{"name": "cup"}', '{"name": "cup", "kind": "car", "price": 3, "known": true}']
)
def test_what_the_schema_forbids_is_not_valid(text: str) -> None:
    assert not fits_schema(text)


@pytest.mark.parametrize(
    ("limits", "share"),
    [
        (Limits(ttft_s=1.5), 1.0),
        (Limits(ttft_s=0.5), 0.0),
        (Limits(tpot_s=0.15), 0.5),
        (Limits(ttft_s=1.5, tpot_s=0.15), 0.5),
    ],
)
def test_requests_within_the_limits_are_good(limits: Limits, share: float) -> None:
    turns = count()
    server = TimedServer(lambda request: answers(request, each=0.1 if next(turns) % 2 else 0.2))
    (point,) = measured(server, streams=(2,), requests=8).points
    found = figures(point, limits=limits)
    assert found.good_share == share
    assert found.good_s == pytest.approx(share * 8 / found.seconds)


def test_an_answer_without_a_count_is_not_called_good() -> None:
    (point,) = measured(TimedServer(lambda request: [1.0, said("a"), DONE]), streams=(1,), requests=2).points
    assert figures(point, limits=Limits(tpot_s=9.0)).good_share == 0.0


def test_cached_tokens_are_a_share_of_the_prompts() -> None:
    server = TimedServer(lambda request: [1.0, said("a"), used(80, 1, cached=60), DONE])
    (point,) = measured(server, streams=(1,), requests=2).points
    assert figures(point).cached_share == 0.75


def test_percentiles_are_values_that_were_measured() -> None:
    assert percentiles([]) is None
    found = percentiles([float(value) for value in range(1, 201)])
    assert found is not None
    assert (found.p50, found.p95, found.p99) == (100.0, 190.0, 198.0)
    few = percentiles([1.0, 2.0, 9.0])
    assert few is not None and (few.p50, few.p95, few.p99) == (2.0, 9.0, 9.0)


def test_a_picture_is_drawn_also_of_what_lacks_values(tmp_path: Path) -> None:
    server = TimedServer(lambda request: [1.0, said("a"), DONE])
    points = measured(server, streams=(1, 2), requests=3, warm_up=0).points
    draw_latencies(tmp_path / "a.png", points, "m at server")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
