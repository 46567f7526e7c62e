"""How the stream of one answer is read and timed."""

import asyncio
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isotherm.daemon.traffic import events
from isotherm.daemon.traffic.answer import Answer, ask
from isotherm.daemon.traffic.events import EventReader, EventTooLargeError
from isotherm.daemon.traffic.figures import tpot, ttft
from support.timed_server import DONE, FINISH, PING, ROLE, Step, TimedServer, said, sse, used
from support.virtual_time import run

Answered = Sequence[Step] | httpx.Response | Exception
BODY: dict[str, Any] = {"messages": []}


def answer_of(answer: Answered, timeout_s: float = 100.0, due: float | None = None, **client: Any) -> Answer:
    async def work() -> Answer:
        async with TimedServer(lambda body: answer).client(**client) as peer:
            return await ask(peer, BODY, timeout_s, due)

    return run(work())


@given(cuts=st.lists(st.integers(0, 60)), end=st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_events_do_not_depend_on_how_bytes_are_cut(cuts: list[int], end: bytes) -> None:
    lines = [b": ping", b"", b"event: x", b"data: one", b"data:two", b"", b"data:  three", b"id: 1", b"", b"data", b""]
    text = end.join(lines) + end
    places = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    reader = EventReader()
    found = [event for a, b in pairwise(places) for event in reader.feed(text[a:b])]
    assert found == [b"one\ntwo", b" three", b""]


def test_an_event_without_an_empty_line_after_it_counts_at_the_end() -> None:
    reader = EventReader()
    assert reader.feed(b"data: [DONE]") == []
    assert reader.end() == [b"[DONE]"]


def test_an_event_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_EVENT", 15)
    reader = EventReader()
    reader.feed(b"data: 123\n")
    with pytest.raises(EventTooLargeError, match="more than 15 bytes"):
        reader.feed(b"data: 12345678901")


def test_the_first_text_counts_and_not_the_role_or_a_ping() -> None:
    found = answer_of([0.5, sse(ROLE), 0.5, PING, 1.0, said("a"), 0.25, said("b"), sse(FINISH), used(7, 2), DONE])
    assert (found.failure, found.text, found.arrivals) == (None, "ab", [2.0, 2.25])
    assert (found.prompt_tokens, found.tokens) == (7, 2)
    assert (ttft(found), tpot(found)) == (2.0, 0.25)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_thoughts_are_part_of_an_answer(name: str) -> None:
    thought = sse({"choices": [{"delta": {name: "hm"}}]})
    found = answer_of([1.0, thought, 1.0, said("a"), sse(FINISH), DONE])
    assert (found.arrivals, found.text) == ([1.0, 2.0], "a")


def test_a_request_that_was_sent_late_is_timed_from_when_it_was_due() -> None:
    assert ttft(answer_of([1.0, said("a"), DONE], due=-2.0)) == 3.0


def test_tokens_of_a_piece_share_its_time() -> None:
    found = answer_of([1.0, said("a b c"), 1.0, said(" d e"), sse(FINISH), used(1, 5), DONE])
    assert (found.arrivals, tpot(found)) == ([1.0, 2.0], 0.25)


def test_an_answer_that_comes_at_once_has_no_pace() -> None:
    assert tpot(answer_of([1.0, said("a b c") + sse(FINISH) + used(1, 3) + DONE])) is None


def test_events_that_come_at_once_are_one_piece() -> None:
    found = answer_of([1.0, said("a") + said("b"), 1.0, said("c"), DONE])
    assert found.arrivals == [1.0, 2.0]


def test_a_token_without_text_counts_until_the_finish_reason() -> None:
    found = answer_of([1.0, said("a"), 0.5, said("b"), 0.5, sse(FINISH), 9.0, used(1, 3), DONE])
    assert tpot(found) == 0.5
    assert found.end == 11.0


def test_without_usage_there_are_no_tokens() -> None:
    found = answer_of([1.0, said("a"), 1.0, said("b"), sse({"choices": [], "usage": None}), DONE])
    assert (found.failure, found.tokens, tpot(found)) == (None, None, None)


def test_cached_tokens_are_the_servers_own_count() -> None:
    assert answer_of([said("a"), used(8, 1, cached=6), DONE]).cached_tokens == 6


def test_an_end_without_done_is_one_if_there_was_a_finish_reason() -> None:
    found = answer_of([1.0, said("a"), sse(FINISH)])
    assert (found.failure, found.end) == (None, 1.0)


def test_a_connection_that_stays_open_after_the_end_is_not_waited_for() -> None:
    steps: list[Step] = [1.0, said("a"), DONE, 50.0, httpx.ReadError("reset")]

    async def work() -> tuple[Answer, float]:
        async with TimedServer(lambda body: steps).client() as peer:
            return await ask(peer, BODY, 99.0), asyncio.get_running_loop().time()

    found, ended = run(work())
    assert (found.failure, found.end, ended) == (None, 1.0, 2.0)


def test_a_connection_that_breaks_after_the_end_takes_nothing_from_the_answer() -> None:
    found = answer_of([1.0, said("a"), DONE, 0.5, httpx.ReadError("reset")])
    assert (found.failure, found.end) == (None, 1.0)


@pytest.mark.parametrize(
    ("steps", "failure", "detail"),
    [
        ([1.0, said("a")], "the connection broke off", "before the answer did"),
        ([1.0, said("a"), httpx.ReadError("reset by peer")], "the connection broke off", "reset by peer"),
        ([httpx.ConnectError("refused")], "no connection", "refused"),
        ([said("a"), sse({"error": {"message": "out of memory"}}), DONE], "an error in the stream", "out of memory"),
        ([said("a"), sse({"error": "worse"}), DONE], "an error in the stream", "worse"),
        ([b"data: {oops\n\n", DONE], "an event that is no JSON", ""),
        ([b"data: 3\n\n", DONE], "an event that is no object", "3"),
        ([sse(ROLE), sse(FINISH), used(3, 0), DONE], "no text", ""),
        ([1.0, said("a"), 200.0, said("b"), DONE], "timed out", ""),
        ([PING, 60.0, PING, 60.0, PING], "timed out", ""),
    ],
)
def test_what_goes_wrong_has_a_name(steps: list[Step], failure: str, detail: str) -> None:
    found = answer_of(steps)
    assert found.failure == failure
    assert detail in found.detail


@pytest.mark.parametrize(
    ("response", "failure", "detail"),
    [
        (httpx.Response(429, json={"error": {"message": "queue is full"}}), "status 429", "queue is full"),
        (httpx.Response(400, json={"message": "unknown field"}), "status 400", "unknown field"),
        (httpx.Response(502, text="bad\x1b[31m gateway"), "status 502", "bad [31m gateway"),
        (httpx.Response(200, json={"choices": []}), "no stream of events", "application/json"),
    ],
)
def test_a_refusal_keeps_its_status_and_words(response: httpx.Response, failure: str, detail: str) -> None:
    found = answer_of(response)
    assert (found.failure, found.detail) == (failure, detail)


def test_a_key_that_a_server_repeats_is_not_shown() -> None:
    refusal = httpx.Response(401, json={"error": {"message": "wrong key sk-secret"}})
    assert answer_of(refusal, headers={"authorization": "Bearer sk-secret"}).detail == "wrong key [key]"


@pytest.mark.parametrize(("breaks", "failure"), [(1, None), (2, "the connection broke off")])
def test_a_connection_that_ends_before_the_answer_is_tried_once_more(breaks: int, failure: str | None) -> None:
    ended: list[Answered] = [httpx.RemoteProtocolError("closed")] * breaks
    turns: Iterator[Answered] = iter([*ended, [1.0, said("a"), DONE]])

    async def work() -> Answer:
        async with TimedServer(lambda body: next(turns)).client() as peer:
            return await ask(peer, BODY, 9.0)

    assert run(work()).failure == failure


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": None},
        {"choices": [None]},
        {"choices": [{"delta": None}]},
        {"choices": [], "usage": {"completion_tokens": "3", "prompt_tokens_details": None}},
    ],
)
def test_odd_chunks_are_passed_over(chunk: dict[str, Any]) -> None:
    found = answer_of([sse(chunk), said("a"), DONE])
    assert (found.failure, found.tokens) == (None, None)
