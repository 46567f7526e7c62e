"""The official client against a real server."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import openai
import pytest
from isotherm.api.service import Service
from isotherm.daemon.config import key_digest
from isotherm.daemon.errors import EngineError, OverloadedError
from openai.types.chat import ChatCompletionMessageParam
from support.api_service import MODEL, make_service, serving, wait_until
from support.scripted_engine import HANG, ScriptedEngine, says

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "x"}]


@contextmanager
def client_of(service: Service, key: str = "none", retries: int = 0) -> Iterator[openai.OpenAI]:
    with (
        serving(service) as port,
        openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=retries) as client,
    ):
        yield client


def test_chat() -> None:
    with client_of(make_service("Hello")) as client:
        answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, logprobs=True, top_logprobs=2)
    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Hello", "stop")
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert [len(entry.top_logprobs) for entry in choice.logprobs.content] == [2] * 5
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6
    assert answer._request_id is not None


def test_chat_stream_with_usage() -> None:
    with client_of(make_service(says("Hello", 0.001))) as client:
        stream = client.chat.completions.create(
            model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 6


def test_stream_helper_accumulates_each_choice() -> None:
    """[11, 20] It adds up strings, and addresses choices by position."""
    answers = iter(["one", "two"])
    service = make_service(ScriptedEngine(lambda submit: says(next(answers), 0.001)))
    with (
        client_of(service) as client,
        client.chat.completions.stream(model=MODEL, messages=MESSAGES, n=2) as stream,
    ):
        final = stream.get_final_completion()
    assert [(choice.message.role, choice.message.content) for choice in final.choices] == [
        ("assistant", "one"),
        ("assistant", "two"),
    ]


def test_breaking_out_of_a_stream_aborts() -> None:
    """[8]"""
    engine = ScriptedEngine(lambda submit: [*says("Hello"), HANG])
    with client_of(make_service(engine)) as client:
        with client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True) as stream:
            next(iter(stream))
        wait_until(lambda: engine.aborted and not engine.open)


def test_async_chat_stream_and_early_break() -> None:
    """[8]"""
    engine = ScriptedEngine(lambda submit: [*says("Hi"), HANG])

    async def first_text(port: int) -> str:
        async with openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=60
        ) as client:
            stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
            async with stream:
                async for chunk in stream:
                    if chunk.choices[0].delta.content:
                        return chunk.choices[0].delta.content
        return ""

    with serving(make_service(engine)) as port:
        assert asyncio.run(first_text(port)) == "Hi"
        wait_until(lambda: engine.aborted and not engine.open)


def test_async_requests_side_by_side() -> None:
    async def answers(port: int) -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", timeout=60) as client:
            calls = [client.chat.completions.create(model=MODEL, messages=MESSAGES) for _ in range(20)]
            return [each.choices[0].message.content for each in await asyncio.gather(*calls)]

    with serving(make_service(says("Hi", 0.01))) as port:
        assert asyncio.run(answers(port)) == ["Hi"] * 20


def test_completions_with_lists_and_logprobs() -> None:
    with client_of(make_service("ab")) as client:
        answer = client.completions.create(model=MODEL, prompt=["x", "y"], logprobs=1, max_tokens=5)
        streamed = list(client.completions.create(model=MODEL, prompt=[1, 2], stream=True))
    assert [choice.text for choice in answer.choices] == ["ab", "ab"]
    assert answer.choices[1].logprobs is not None
    assert answer.choices[1].logprobs.text_offset == [0, 1, 2]  # the end token is one
    assert "".join(chunk.choices[0].text for chunk in streamed) == "ab"


def test_completions_with_echo_and_scores() -> None:
    with client_of(make_service("!")) as client:
        answer = client.completions.create(model=MODEL, prompt="ab", logprobs=1, echo=True, max_tokens=1)
        streamed = list(
            client.completions.create(model=MODEL, prompt="ab", logprobs=1, echo=True, max_tokens=1, stream=True)
        )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert (answer.choices[0].text, logprobs.token_logprobs) == ("ab!", [None, -1.0, -2.0, 0.0])
    told = [chunk.choices[0].logprobs for chunk in streamed]
    assert [offset for each in told if each for offset in each.text_offset or []] == logprobs.text_offset


def test_embeddings() -> None:
    """The client asks for base64 by itself."""
    with client_of(make_service()) as client:
        answer = client.embeddings.create(model=MODEL, input=["a", "b"], dimensions=2)
    assert [each.index for each in answer.data] == [0, 1]
    assert answer.data[0].embedding == pytest.approx([0.6, 0.8])


def test_models() -> None:
    with client_of(make_service()) as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        assert client.models.retrieve(MODEL).id == MODEL


def test_errors_become_the_clients_classes() -> None:
    with client_of(make_service()) as client:
        with pytest.raises(openai.BadRequestError) as bad:
            client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=5000)
        with pytest.raises(openai.NotFoundError) as missing:
            client.chat.completions.create(model="other", messages=MESSAGES)
    assert (bad.value.code, bad.value.param) == ("context_length_exceeded", "max_tokens")
    assert missing.value.code == "model_not_found"


def test_overload_is_retried_and_then_told() -> None:
    """[53]"""
    engine = ScriptedEngine(lambda submit: [], refuse=OverloadedError("full", 0.01))
    with client_of(make_service(engine)) as client, pytest.raises(openai.RateLimitError) as error:
        client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert error.value.response.headers["retry-after"] == "1"


def test_failure_in_a_stream_raises() -> None:
    """[60]"""
    engine = ScriptedEngine(lambda submit: [*says("a"), EngineError("the step failed")])
    with client_of(make_service(engine)) as client:
        stream = client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="the step failed"):
            list(stream)


def test_api_key() -> None:
    """[70]"""
    service = make_service(api_keys=frozenset({key_digest("sesame")}))
    with client_of(service, key="sesame") as client:
        assert client.models.retrieve(MODEL).id == MODEL
    with client_of(service, key="wrong") as client, pytest.raises(openai.AuthenticationError):
        client.models.list()
