"""Streams of chat chunks, in process. Numbers in brackets: a known bug of other servers that is tested for."""

import asyncio
from typing import Any

import pytest
from isotherm.api.service import Limits
from isotherm.daemon.errors import EngineError, OverloadedError
from support.api_service import chat, chunks, make_service
from support.scripted_engine import HANG, ScriptedEngine, Step, says


def deltas(data: list[Any], index: int = 0) -> list[dict[str, Any]]:
    return [each["choices"][0]["delta"] for each in data if each["choices"] and each["choices"][0]["index"] == index]


def test_stream_opens_with_the_role_and_closes_with_the_reason() -> None:
    """[19, 20]"""
    data = chunks(chat(make_service(says("Hi", 0.001)), stream=True))
    assert deltas(data) == [{"role": "assistant", "content": ""}, {"content": "H"}, {"content": "i"}, {}]
    assert [each["choices"][0]["finish_reason"] for each in data] == [None, None, None, "stop"]


def test_all_chunks_have_one_id_and_time() -> None:
    data = chunks(chat(make_service(says("Hi", 0.001)), stream=True))
    assert len({(each["id"], each["created"], each["model"], each["object"]) for each in data}) == 1
    assert data[0]["object"] == "chat.completion.chunk"


def test_headers_tell_proxies_not_to_buffer() -> None:
    headers = chat(make_service(), stream=True).headers
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-cache", "no")
    assert "content-length" not in headers


def test_usage_chunk_comes_last_and_only_there() -> None:
    """[21, 22]"""
    data = chunks(chat(make_service("Hi"), stream=True, stream_options={"include_usage": True}))
    assert data[-1]["choices"] == []
    assert data[-1]["usage"]["completion_tokens"] == 3
    assert all(each["usage"] is None for each in data[:-1])


def test_no_usage_unless_asked() -> None:
    """[22]"""
    assert all("usage" not in each for each in chunks(chat(make_service("Hi"), stream=True)))


def test_every_choice_opens_in_order_before_any_text() -> None:
    """[20, 30]"""
    answers = iter(["one", "two"])
    service = make_service(ScriptedEngine(lambda submit: says(next(answers), 0.001)))
    data = chunks(chat(service, stream=True, n=2))
    assert [(each["choices"][0]["index"], each["choices"][0]["delta"].get("role")) for each in data[:2]] == [
        (0, "assistant"),
        (1, "assistant"),
    ]
    texts = ["".join(delta.get("content", "") for delta in deltas(data, index)) for index in (0, 1)]
    assert texts == ["one", "two"]
    assert sum("role" in delta for index in (0, 1) for delta in deltas(data, index)) == 2


def test_part_of_a_stop_string_is_never_streamed() -> None:
    """[1, 2]"""
    data = chunks(chat(make_service([*says("say STOP now", 0.001), HANG]), stream=True, stop=["STOP"]))
    assert [delta.get("content") for delta in deltas(data)] == ["", "s", "a", "y", " ", None]
    assert data[-1]["choices"][0]["finish_reason"] == "stop"


def test_held_text_comes_before_the_finish_chunk() -> None:
    """[4]"""
    data = chunks(chat(make_service(says("say ST", 0.001)), stream=True, stop=["STOP"]))
    assert [delta.get("content") for delta in deltas(data)][-2:] == ["ST", None]


def test_split_characters_come_whole() -> None:
    """[5]"""
    data = chunks(chat(make_service(says("é🙂漢", 0.001)), stream=True))
    assert [delta["content"] for delta in deltas(data)[1:-1]] == ["é", "🙂", "漢"]


def test_each_chunk_has_the_logprobs_of_its_tokens() -> None:
    """[24]"""
    data = chunks(chat(make_service(says("aé", 0.001)), stream=True, logprobs=True, top_logprobs=1))
    entries = [each["choices"][0]["logprobs"] for each in data]
    assert [None if each is None else len(each["content"]) for each in entries] == [None, 1, 2, None]


def test_pings_run_before_and_between_tokens() -> None:
    """[61, 72] By the clock, in prefill and while text is held back."""
    steps = [0.2, *says("ST"), 0.2, *says("x")]
    service = make_service(steps, limits=Limits(ping_interval=0.02))
    events = chat(service, stream=True, stop="STOP").text.split("\n\n")
    first = next(index for index, event in enumerate(events) if event.startswith("data:"))
    assert first >= 1
    assert set(events[:first]) == {": ping"}
    assert '"content":"STx"' in events[first + 1]


def test_pings_go_on_in_decode() -> None:
    """[72]"""
    service = make_service([*says("a"), 0.2, *says("b")], limits=Limits(ping_interval=0.02))
    text = chat(service, stream=True).text
    between = text[text.index('"content":"a"') : text.index('"content":"b"')]
    assert between.count("\n\n: ping\n\n") >= 1


def test_pings_run_while_held_tokens_arrive() -> None:
    """[72] Tokens that bring no text are no sign of life to the client."""
    service = make_service([*says("S" * 40, 0.01)], limits=Limits(ping_interval=0.05))
    text = chat(service, stream=True, stop="S" * 50).text
    assert text.startswith(": ping\n\n")


@pytest.mark.parametrize(
    ("refusal", "status"), [(OverloadedError("the queue is full", 2.0), 429), (EngineError("draining"), 503)]
)
def test_refusal_is_a_status_not_a_frame(refusal: Exception, status: int) -> None:
    """[53, 58]"""
    response = chat(make_service(ScriptedEngine(lambda submit: [], refuse=refusal)), stream=True)
    assert response.status_code == status
    assert response.json()["error"]["message"] == str(refusal)


def test_refusal_of_a_later_child_is_a_status_too() -> None:
    """[58]"""
    engine = ScriptedEngine(lambda submit: [HANG], refuse=OverloadedError("full", 3.0), capacity=1)
    assert chat(make_service(engine), stream=True, n=2).status_code == 429


def test_too_long_prompt_is_a_status_not_a_frame() -> None:
    """[58]"""
    assert chat(make_service(), "x" * 1000, stream=True).status_code == 400


def test_failure_in_the_stream_is_one_error_frame_and_done() -> None:
    """[59, 60]"""
    engine = ScriptedEngine(lambda submit: [*says("a"), EngineError("step failed")])
    data = chunks(chat(make_service(engine), stream=True))
    assert data[-1] == {
        "error": {
            "message": "step failed",
            "type": "service_unavailable_error",
            "param": None,
            "code": "engine_unavailable",
        }
    }
    assert sum("error" in each for each in data) == 1


def test_failure_of_one_choice_aborts_the_others() -> None:
    """[8, 59]"""
    scripts = iter([[EngineError("step failed")], [HANG]])
    engine = ScriptedEngine(lambda submit: next(scripts))
    chunks(chat(make_service(engine), stream=True, n=2))
    assert (engine.submitted[1].request_id, "abort") in engine.aborted


def test_unforeseen_failure_keeps_its_text_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """[59]"""
    response = chat(make_service([ZeroDivisionError("secret")]), stream=True)
    data = chunks(response)
    assert data[0]["error"]["code"] == "internal_error"
    assert "secret" not in str(data)
    assert "secret" in caplog.text
    assert response.headers["x-request-id"] in caplog.text


def test_server_side_abort_is_an_error_frame() -> None:
    """[59] Not a finish reason that clients do not know."""
    engine = ScriptedEngine(lambda submit: [*says("a"), HANG])

    def script(submit: object) -> list[Step]:
        asyncio.get_running_loop().call_later(0.05, lambda: [engine.abort(each) for each in list(engine.open)])
        return [*says("a"), HANG]

    engine.script = script
    assert chunks(chat(make_service(engine), stream=True))[-1]["error"]["code"] == "engine_unavailable"


def test_answer_without_text_still_opens_and_closes() -> None:
    """[20]"""
    assert deltas(chunks(chat(make_service(""), stream=True))) == [{"role": "assistant", "content": ""}, {}]
