"""Ollama's Python client against a real server."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ollama
import orjson
import pytest
from isotherm.api.service import Limits, Service
from isotherm.daemon.errors import EngineError, OverloadedError
from support.api_service import MODEL, call, make_service, serving, wait_until
from support.noted_reader import read_notes
from support.scripted_engine import HANG, ByteTokenizer, ScriptedEngine, says

MODULE = "isotherm.api.ollama.generation"
MESSAGES = [{"role": "user", "content": "x"}]
SCHEMA = {"type": "object", "properties": {}}
ADD: dict[str, Any] = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}


@contextmanager
def client_of(service: Service) -> Iterator[ollama.Client]:
    with serving(service) as port:
        client = ollama.Client(host=f"http://127.0.0.1:{port}")
        try:
            yield client
        finally:
            client._client.close()  # it has no public way to close


@pytest.mark.parametrize("name", [MODEL, f"{MODEL}:latest"])
def test_chat(name: str) -> None:
    with client_of(make_service("Hello")) as client:
        answer = client.chat(model=name, messages=MESSAGES)
    assert (answer.model, answer.message.role, answer.message.content) == (name, "assistant", "Hello")
    assert (answer.done, answer.done_reason, answer.eval_count) == (True, "stop", 6)
    assert answer.prompt_eval_count == len("user: x\n")
    assert answer.message.tool_calls is None
    assert answer.created_at is not None


def test_chat_stream_ends_in_the_line_with_done() -> None:
    """[59]"""
    with client_of(make_service(says("Hello", 0.002))) as client:
        lines = list(client.chat(model=MODEL, messages=MESSAGES, stream=True))
    assert [line.message.content for line in lines] == [*"Hello", ""]
    assert [line.done for line in lines] == [False] * 5 + [True]
    last = lines[-1]
    assert last.total_duration is not None
    assert last.prompt_eval_duration is not None
    assert last.eval_duration is not None
    assert last.total_duration == last.prompt_eval_duration + last.eval_duration
    assert last.eval_duration > 0


@pytest.mark.parametrize("stream", [False, True])
def test_tools_and_thoughts(monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    """[18]"""
    wishes = read_notes(monkeypatch, MODULE)
    with client_of(make_service('?hm|Well.|!add{"a": 1}|!add{"a": 2}|')) as client:
        answers = client.chat(model=MODEL, messages=MESSAGES, tools=[ADD], think=True, stream=stream)
        parts = list(answers) if stream else [answers]
    assert "".join(part.message.thinking or "" for part in parts) == "hm"
    assert "".join(part.message.content or "" for part in parts) == "Well."
    calls = [call for part in parts for call in part.message.tool_calls or ()]
    assert [(call.function.name, call.function.arguments) for call in calls] == [("add", {"a": 1}), ("add", {"a": 2})]
    assert parts[-1].done_reason == "tool_calls"
    assert [tool.name for tool in wishes[0].tools] == ["add"]
    assert wishes[0].thinking.enabled is True


def test_leaving_a_stream_aborts() -> None:
    """[8] It has no way to leave but to let go of the stream."""
    engine = ScriptedEngine(lambda submit: [*says("Hello"), HANG])
    with client_of(make_service(engine)) as client:
        stream = client.chat(model=MODEL, messages=MESSAGES, stream=True)
        assert next(stream).message.content
        stream.close()
        wait_until(lambda: engine.aborted and not engine.open)


def test_generate() -> None:
    engine = ScriptedEngine(lambda submit: says("Hello"))
    with client_of(make_service(engine)) as client:
        answer = client.generate(model=MODEL, prompt="x", system="Be kind.")
        parts = list(client.generate(model=MODEL, prompt="x", stream=True))
    assert (answer.response, answer.done_reason) == ("Hello", "stop")
    assert ByteTokenizer().decode(engine.submitted[0].prompt) == "system: Be kind.\nuser: x\n"
    assert "".join(part.response or "" for part in parts) == "Hello"
    assert parts[-1].done


def test_raw_prompt_sees_no_template() -> None:
    engine = ScriptedEngine(lambda submit: says("Hi"))
    with client_of(make_service(engine)) as client:
        assert client.generate(model=MODEL, prompt="x", raw=True, options={"num_predict": 1}).response == "H"
    assert ByteTokenizer().decode(engine.submitted[0].prompt) == "x"


def test_options_reach_the_sampler() -> None:
    engine = ScriptedEngine(lambda submit: says("abc"))
    options = {
        "num_predict": 9,
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.25,
        "min_p": 0.125,
        "repeat_penalty": 1.5,
        "seed": 7,
        "stop": ["b"],
        "num_ctx": 4096,
    }
    with client_of(make_service(engine)) as client:
        answer = client.chat(model=MODEL, messages=MESSAGES, options=options)
    sampling = engine.submitted[0].sampling
    assert answer.message.content == "a"
    assert (sampling.max_tokens, sampling.temperature, sampling.top_k, sampling.top_p) == (9, 0.5, 3, 0.25)
    assert (sampling.min_p, sampling.repetition_penalty, sampling.seed, sampling.stop) == (0.125, 1.5, 7, ("b",))


@pytest.mark.parametrize("wanted", [-1, 5000])
def test_num_predict_is_what_fits_at_most(wanted: int) -> None:
    engine = ScriptedEngine(lambda submit: says("a"))
    with client_of(make_service(engine)) as client:
        client.chat(model=MODEL, messages=MESSAGES, options={"num_predict": wanted})
    assert engine.submitted[0].sampling.max_tokens == 1000 - len("user: x\n")


def test_logprobs() -> None:
    with client_of(make_service("ab")) as client:
        whole = client.chat(model=MODEL, messages=MESSAGES, logprobs=True, top_logprobs=2)
        parts = list(client.chat(model=MODEL, messages=MESSAGES, logprobs=True, stream=True))
    assert whole.logprobs is not None
    assert [entry.token for entry in whole.logprobs] == ["a", "b"]
    assert [entry.token for part in parts for entry in part.logprobs or ()] == ["a", "b"]


def test_empty_requests_load_the_model() -> None:
    with client_of(make_service()) as client:
        assert client.generate(model=MODEL).done_reason == "load"
        assert client.chat(model=MODEL).done_reason == "load"


def test_embeddings() -> None:
    with client_of(make_service()) as client:
        one = client.embed(model=MODEL, input="ab")
        many = client.embed(model=MODEL, input=["ab", "b"], dimensions=2)
        with pytest.raises(ollama.ResponseError, match="dimensions must lie"):
            client.embed(model=MODEL, input="ab", dimensions=10_000)
        assert client.embed(model=MODEL, input="a" * 2000).prompt_eval_count == 999
    assert sum(value * value for value in one.embeddings[0]) == pytest.approx(1)
    assert [len(values) for values in many.embeddings] == [2, 2]
    assert many.prompt_eval_count == 5


def test_what_describes_the_model() -> None:
    with client_of(make_service()) as client:
        (listed,) = client.list().models
        (loaded,) = client.ps().models
        shown = client.show(MODEL)
    assert listed.model == loaded.name == f"{MODEL}:latest"
    assert loaded.context_length == 1000
    assert shown.capabilities is not None
    assert "completion" in shown.capabilities


def test_refusals_say_why() -> None:
    full = ScriptedEngine(lambda submit: [], refuse=OverloadedError("full", 0.01))
    with client_of(make_service(full)) as client, pytest.raises(ollama.ResponseError) as overload:
        client.chat(model=MODEL, messages=MESSAGES)
    assert (overload.value.status_code, overload.value.error) == (429, "full")
    with client_of(make_service()) as client:
        with pytest.raises(ollama.ResponseError, match="'other' is not served") as missing:
            client.chat(model="other", messages=MESSAGES)
        with pytest.raises(ollama.ResponseError, match="suffix is not supported"):
            client.generate(model=MODEL, prompt="x", suffix="y")
    assert missing.value.status_code == 404


def test_failure_in_a_stream_is_its_last_line() -> None:
    """[59]"""
    engine = ScriptedEngine(lambda submit: [*says("a"), EngineError("the step failed")])
    with client_of(make_service(engine)) as client, pytest.raises(ollama.ResponseError, match="the step failed"):
        list(client.chat(model=MODEL, messages=MESSAGES, stream=True))


def test_silence_is_filled_with_lines_that_add_nothing() -> None:
    """[61, 72]"""
    service = make_service([0.1, *says("a")], limits=Limits(ping_interval=0.02))
    response = call(service, "POST", "/api/chat", content=orjson.dumps({"model": MODEL, "messages": MESSAGES}))
    lines = [orjson.loads(line) for line in response.text.splitlines()]
    assert response.headers["content-type"] == "application/x-ndjson"
    assert lines[0]["message"] == {"role": "assistant", "content": ""}
    assert "".join(line["message"]["content"] for line in lines) == "a"
    assert lines[-1]["done"] is True


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_root_says_that_ollama_is_running(method: str) -> None:
    response = call(make_service(), method, "/", headers={"accept": "text/plain"})
    assert response.status_code == 200
    assert response.text == ("Ollama is running" if method == "GET" else "")
    assert "Ollama is running" in call(make_service(), "GET", "/").text
