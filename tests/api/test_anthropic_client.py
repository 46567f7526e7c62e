"""Anthropic's official client against a real server."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import pytest
from anthropic.types import MessageParam, ToolParam
from isotherm.api.service import Limits, Service
from isotherm.daemon.config import key_digest
from isotherm.daemon.errors import EngineError, OverloadedError
from pydantic import BaseModel
from support.api_service import MODEL, call, make_service, serving, wait_until
from support.dialects import sse
from support.noted_reader import read_notes
from support.scripted_engine import HANG, ScriptedEngine, says

MODULE = "isotherm.api.anthropic.messages"
MESSAGES: list[MessageParam] = [{"role": "user", "content": "x"}]
ADD: ToolParam = {
    "name": "add",
    "description": "Adds.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}


class Sum(BaseModel):
    a: int


NOTES = '?hm|Well.|!add{"a": 1}|!add{"a": 22}|'


@contextmanager
def client_of(service: Service, **options: Any) -> Iterator[anthropic.Anthropic]:
    options = {"api_key": "none", "max_retries": 0} | options
    with serving(service) as port, anthropic.Anthropic(base_url=f"http://127.0.0.1:{port}", **options) as client:
        yield client


def test_message() -> None:
    with client_of(make_service(ScriptedEngine(lambda submit: says("Hello"), cached_tokens=3))) as client:
        message = client.messages.create(model=MODEL, max_tokens=50, messages=MESSAGES, system="Be kind.")
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": "Hello"}]
    assert (message.stop_reason, message.usage.output_tokens, message.usage.cache_read_input_tokens) == (
        "end_turn",
        6,
        3,
    )
    assert message._request_id


def test_stream_helper() -> None:
    with (
        client_of(make_service(says("Hello", 0.001))) as client,
        client.messages.stream(model=MODEL, max_tokens=50, messages=MESSAGES) as stream,
    ):
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert text == "Hello"
    assert (message.stop_reason, message.usage.output_tokens) == ("end_turn", 6)
    assert message.usage.input_tokens > 0


def test_stream_and_whole_answer_agree_on_tools_and_thoughts(monkeypatch: pytest.MonkeyPatch) -> None:
    """[65]"""
    read_notes(monkeypatch, MODULE)
    given: dict[str, Any] = {"model": MODEL, "max_tokens": 100, "messages": MESSAGES, "tools": [ADD]}
    with client_of(make_service(says(NOTES, 0.0005))) as client:
        whole = client.messages.create(**given)
        with client.messages.stream(**given) as stream:
            deltas = [event.partial_json for event in stream if event.type == "input_json"]
            streamed = stream.get_final_message()
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert [block.to_dict() for block in streamed.content] == [block.to_dict() for block in whole.content]
    assert [block.input for block in whole.content if block.type == "tool_use"] == [{"a": 1}, {"a": 22}]
    assert len(deltas) > 4
    assert streamed.stop_reason == whole.stop_reason == "tool_use"


def test_parsed_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    wishes = read_notes(monkeypatch, MODULE)
    with client_of(make_service('{"a": 1}')) as client:
        message = client.messages.parse(model=MODEL, max_tokens=50, messages=MESSAGES, output_format=Sum)
    assert message.parsed_output == Sum(a=1)
    assert wishes[0].structure is not None


def test_stop_sequence_is_told() -> None:
    with client_of(make_service("one END two")) as client:
        message = client.messages.create(model=MODEL, max_tokens=50, messages=MESSAGES, stop_sequences=["END"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "END")
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": "one "}]


def test_max_tokens_cut() -> None:
    with client_of(make_service("Hello")) as client:
        assert client.messages.create(model=MODEL, max_tokens=2, messages=MESSAGES).stop_reason == "max_tokens"


def test_count_tokens_equals_usage() -> None:
    given: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "system": "Be brief."}
    with client_of(make_service("Hi")) as client:
        counted = client.messages.count_tokens(**given)
        message = client.messages.create(**given, max_tokens=5)
    assert counted.input_tokens == message.usage.input_tokens


def test_errors_have_their_classes() -> None:
    full = ScriptedEngine(lambda submit: [], refuse=OverloadedError("full", 0.01))
    with client_of(make_service(full)) as client, pytest.raises(anthropic.RateLimitError, match="full"):
        client.messages.create(model=MODEL, max_tokens=5, messages=MESSAGES)
    with client_of(make_service()) as client:
        with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
            client.messages.create(model=MODEL, max_tokens=0, messages=MESSAGES)
        with pytest.raises(anthropic.NotFoundError) as missing:
            client.messages.create(model="other", max_tokens=5, messages=MESSAGES)
    assert missing.value.request_id
    told = f"the model 'other' is not served here; this server has {MODEL!r}"
    assert missing.value.body == {"type": "error", "error": {"type": "not_found_error", "message": told}}


@pytest.mark.parametrize("keys", [{"api_key": "sesame"}, {"api_key": None, "auth_token": "sesame"}])
def test_either_header_carries_the_key(keys: dict[str, str | None]) -> None:
    """[70]"""
    service = make_service(api_keys=frozenset({key_digest("sesame")}))
    with client_of(service, **keys) as client:
        assert client.messages.create(model=MODEL, max_tokens=5, messages=MESSAGES).role == "assistant"


def test_wrong_key() -> None:
    """[70]"""
    service = make_service(api_keys=frozenset({key_digest("sesame")}))
    with client_of(service, api_key="wrong") as client, pytest.raises(anthropic.AuthenticationError) as error:
        client.messages.create(model=MODEL, max_tokens=5, messages=MESSAGES)
    assert error.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]


def test_failure_in_a_stream_is_an_error_event() -> None:
    """[59]"""
    engine = ScriptedEngine(lambda submit: [*says("a"), EngineError("the step failed")])
    with client_of(make_service(engine)) as client, pytest.raises(anthropic.APIStatusError, match="the step failed"):
        list(client.messages.create(model=MODEL, max_tokens=5, messages=MESSAGES, stream=True))


def test_leaving_a_stream_aborts() -> None:
    """[8]"""
    engine = ScriptedEngine(lambda submit: [*says("Hello"), HANG])
    with client_of(make_service(engine)) as client:
        with client.messages.create(model=MODEL, max_tokens=50, messages=MESSAGES, stream=True) as stream:
            next(iter(stream))
        wait_until(lambda: engine.aborted and not engine.open)


def test_message_start_goes_before_any_ping() -> None:
    """[61, 72]"""
    service = make_service([0.1, *says("a")], limits=Limits(ping_interval=0.02))
    body = {"model": MODEL, "max_tokens": 5, "messages": MESSAGES, "stream": True}
    kinds = [event["type"] for event in sse(call(service, "POST", "/v1/messages", json=body).text)]
    assert kinds[:2] == ["message_start", "ping"]
    assert kinds[-1] == "message_stop"
