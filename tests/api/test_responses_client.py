"""The official client's responses against a real server."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import openai
import pytest
from isotherm.api.service import Limits, Service
from isotherm.daemon.config import key_digest
from isotherm.daemon.errors import EngineError
from pydantic import BaseModel
from support.api_service import MODEL, call, make_service, serving, wait_until
from support.dialects import sse
from support.noted_reader import read_notes
from support.scripted_engine import HANG, ByteTokenizer, ScriptedEngine, says

MODULE = "isotherm.api.responses.create"
PATH = "/v1/responses"


class Sum(BaseModel):
    a: int


ADD: Any = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}, "strict": True}


@contextmanager
def client_of(service: Service, key: str = "none") -> Iterator[openai.OpenAI]:
    with (
        serving(service) as port,
        openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0) as client,
    ):
        yield client


def prompts(engine: ScriptedEngine) -> list[str]:
    return [ByteTokenizer().decode(submit.prompt) for submit in engine.submitted]


def test_create() -> None:
    with client_of(make_service("Hello")) as client:
        response = client.responses.create(model=MODEL, input="x", instructions="Be kind.", max_output_tokens=50)
    assert (response.output_text, response.status, response.instructions) == ("Hello", "completed", "Be kind.")
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (len("system: Be kind.\nuser: x\n"), 6)


def test_stream_helper() -> None:
    """[66]"""
    with (
        client_of(make_service(says("Hello", 0.001))) as client,
        client.responses.stream(model=MODEL, input="x") as stream,
    ):
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        response = stream.get_final_response()
    assert text == response.output_text == "Hello"


def test_tools_and_reasoning(monkeypatch: pytest.MonkeyPatch) -> None:
    """[66]"""
    read_notes(monkeypatch, MODULE)
    service = make_service(says('?hm|Well.|!add{"a": 1}|!add{"a": 2}|', 0.0005))
    with client_of(service) as client, client.responses.stream(model=MODEL, input="x", tools=[ADD]) as stream:
        response = stream.get_final_response()
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    calls = [item for item in response.output if item.type == "function_call"]
    assert [(item.name, item.arguments) for item in calls] == [("add", '{"a": 1}'), ("add", '{"a": 2}')]


def test_parsed_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    wishes = read_notes(monkeypatch, MODULE)
    with client_of(make_service('{"a": 1}')) as client:
        response = client.responses.parse(model=MODEL, input="x", text_format=Sum)
    assert response.output_parsed == Sum(a=1)
    assert wishes[0].structure is not None


def test_cut_answer_is_incomplete() -> None:
    with client_of(make_service("Hello")) as client:
        response = client.responses.create(model=MODEL, input="x", max_output_tokens=2)
    assert (response.status, response.output_text) == ("incomplete", "He")


def test_conversation_goes_on_from_a_kept_response() -> None:
    engine = ScriptedEngine(lambda submit: says("Hi"))
    with client_of(make_service(engine)) as client:
        first = client.responses.create(model=MODEL, input="one", instructions="Be kind.")
        client.responses.create(model=MODEL, input="two", previous_response_id=first.id)
    assert prompts(engine)[1] == "user: one\nassistant: Hi\nuser: two\n"


def test_kept_responses_are_shown_and_deleted() -> None:
    with client_of(make_service("Hi")) as client:
        first = client.responses.create(model=MODEL, input="one")
        second = client.responses.create(model=MODEL, input="two", previous_response_id=first.id)
        assert client.responses.retrieve(second.id).output_text == "Hi"
        page = client.responses.input_items.list(second.id, order="asc", limit=2)
        items = list(page)  # of all pages
        client.responses.delete(second.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(second.id)
    assert [(item.type, getattr(item, "role", None)) for item in items] == [
        ("message", "user"),
        ("message", "assistant"),
        ("message", "user"),
    ]
    assert len(page.data) == 2


def test_nothing_is_kept_that_should_not_be() -> None:
    with client_of(make_service("Hi")) as client:
        response = client.responses.create(model=MODEL, input="x", store=False)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(response.id)
        with pytest.raises(openai.BadRequestError) as error:
            client.responses.create(model=MODEL, input="x", previous_response_id=response.id)
    assert (error.value.code, error.value.param) == ("previous_response_not_found", "previous_response_id")


def test_responses_of_another_key_are_not_seen() -> None:
    service = make_service("Hi", api_keys=frozenset({key_digest("mine"), key_digest("theirs")}))
    with client_of(service, "mine") as client:
        response = client.responses.create(model=MODEL, input="x")
        assert client.responses.retrieve(response.id).id == response.id
        with pytest.raises(openai.NotFoundError):
            client.with_options(api_key="theirs").responses.retrieve(response.id)


def test_cancel_ends_a_stream_with_what_there_is() -> None:
    engine = ScriptedEngine(lambda submit: [*says("Hel"), HANG])
    cancelled: list[openai.types.responses.Response] = []
    with (
        client_of(make_service(engine)) as client,
        client.responses.create(model=MODEL, input="x", stream=True) as stream,
    ):
        events = iter(stream)
        first = next(events)
        assert first.type == "response.created"
        shown = client.responses.retrieve(first.response.id)
        text = next(event.delta for event in events if event.type == "response.output_text.delta")
        thread = Thread(target=lambda: cancelled.append(client.responses.cancel(first.response.id)))
        thread.start()
        last = list(events)[-1]
        thread.join()
    assert shown.status == "in_progress"
    assert text
    assert last.type == "response.incomplete"
    assert (last.response.status, last.response.output_text) == ("cancelled", "Hel")
    assert (cancelled[0].status, cancelled[0].output_text) == ("cancelled", "Hel")


def test_what_has_ended_cannot_be_cancelled() -> None:
    with client_of(make_service("Hi")) as client:
        response = client.responses.create(model=MODEL, input="x")
        with pytest.raises(openai.BadRequestError, match="is completed"):
            client.responses.cancel(response.id)


@pytest.mark.parametrize(
    "field",
    [{"background": True}, {"conversation": "conv_1"}, {"top_logprobs": 2}, {"truncation": "middle"}],
    ids=lambda field: next(iter(field)),
)
def test_what_cannot_be_honoured_is_refused_by_name(field: dict[str, Any]) -> None:
    response = call(make_service(), "POST", PATH, json={"model": MODEL, "input": "x", **field})
    assert (response.status_code, response.json()["error"]["param"]) == (400, next(iter(field)))


def test_failure_in_a_stream_is_told_and_kept() -> None:
    """[59]"""
    engine = ScriptedEngine(lambda submit: [*says("a"), EngineError("the step failed")])
    with client_of(make_service(engine)) as client:
        last = list(client.responses.create(model=MODEL, input="x", stream=True))[-1]
        assert last.type == "response.failed"
        assert last.response.error is not None
        assert last.response.error.message == "the step failed"
        assert client.responses.retrieve(last.response.id).status == "failed"


def test_leaving_a_stream_aborts_and_forgets_it() -> None:
    """[8]"""
    engine = ScriptedEngine(lambda submit: [*says("Hello"), HANG])
    with client_of(make_service(engine)) as client:
        with client.responses.create(model=MODEL, input="x", stream=True) as stream:
            first = next(iter(stream))
        wait_until(lambda: engine.aborted and not engine.open)
        assert first.type == "response.created"
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(first.response.id)


def test_stream_opens_before_any_ping() -> None:
    """[61, 66, 72]"""
    service = make_service([0.1, *says("a")], limits=Limits(ping_interval=0.02))
    text = call(service, "POST", PATH, json={"input": "x", "stream": True}).text
    assert text.index("response.in_progress") < text.index(": ping")
    assert [event["sequence_number"] for event in sse(text)] == list(range(len(sse(text))))


def test_automatic_truncation_drops_the_oldest_turns() -> None:
    engine = ScriptedEngine(lambda submit: says("Hi"), max_context=60)
    items = [{"role": "developer", "content": "d"}] + [{"role": "user", "content": f"turn {i}"} for i in range(20)]
    body = {"input": items, "truncation": "auto"}
    assert call(make_service(engine), "POST", PATH, json=body).status_code == 200
    assert prompts(engine) == ["system: d\n" + "".join(f"user: turn {i}\n" for i in (17, 18, 19))]
    refused = call(make_service(engine), "POST", PATH, json={"input": items})
    assert refused.json()["error"]["code"] == "context_length_exceeded"
