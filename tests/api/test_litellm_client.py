"""LiteLLM against a running server."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from support.agents import TOOL, Picture, agent_engine, agent_server, form_server
from support.api_service import MODEL, wait_until
from support.scripted_engine import ScriptedEngine


@pytest.fixture(scope="module")
def litellm() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or it would fetch a list of prices when it is imported
        import litellm

        loop = asyncio.new_event_loop()  # it asks for one, and would make one that nobody closes
        asyncio.set_event_loop(loop)
        yield litellm
        asyncio.set_event_loop(None)
        loop.close()


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return agent_engine()


@pytest.fixture(scope="module")
def agents(engine: ScriptedEngine) -> Iterator[dict[str, Any]]:
    with agent_server(engine) as root:
        yield from given(root)


@pytest.fixture(scope="module")
def forms() -> Iterator[dict[str, Any]]:
    with form_server() as root:
        yield from given(root)


def given(root: str) -> Iterator[dict[str, Any]]:
    """What each call of LiteLLM is given; the client is ours only so that somebody closes it."""
    with openai.OpenAI(base_url=f"{root}/v1", api_key="none", max_retries=0) as client:
        yield {"model": f"openai/{MODEL}", "api_base": f"{root}/v1", "api_key": "none", "client": client}


def says(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def test_chat_and_stream(litellm: Any, agents: dict[str, Any]) -> None:
    whole = litellm.completion(**agents, **says("hello"))
    chunks = list(litellm.completion(**agents, **says("hello"), stream=True, stream_options={"include_usage": True}))
    streamed = litellm.stream_chunk_builder(chunks)
    for answer in (whole, streamed):
        assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("Hello", "stop")
        assert answer.usage.completion_tokens == 6


def test_calls_and_comes_back(litellm: Any, agents: dict[str, Any]) -> None:
    asked = agents | says("weather?") | {"tools": [TOOL]}
    called = litellm.completion(**asked).choices[0].message
    streamed = litellm.stream_chunk_builder(list(litellm.completion(**asked, stream=True))).choices[0].message
    for message in (called, streamed):
        (call,) = message.tool_calls
        assert (call.function.name, call.function.arguments) == ("get_weather", '{"city": "Bern"}')
        assert (message.reasoning_content, message.content) == ("Hm", "I look.")
    result = {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "sunny"}
    answer = litellm.completion(**asked | {"messages": [*asked["messages"], called, result]})
    assert answer.choices[0].message.content == "It is sunny in Bern."


def test_schema_whole_and_streamed(litellm: Any, forms: dict[str, Any]) -> None:
    asked = forms | says("hello") | {"response_format": Picture, "seed": 3}
    whole = litellm.completion(**asked).choices[0].message.content
    streamed = litellm.stream_chunk_builder(list(litellm.completion(**asked, stream=True))).choices[0].message.content
    Picture.model_validate_json(whole)
    assert streamed == whole


def test_responses(litellm: Any, agents: dict[str, Any]) -> None:
    asked = {name: agents[name] for name in ("model", "api_base", "api_key")}
    response = litellm.responses(**asked, input="hello")
    assert response.output[-1].content[0].text == "Hello"


@pytest.mark.parametrize("dialect", ["anthropic", "ollama_chat"])
def test_the_other_dialects(litellm: Any, agents: dict[str, Any], dialect: str) -> None:
    root = agents["api_base"].removesuffix("/v1")
    asked = {"model": f"{dialect}/{MODEL}", "api_base": root, "api_key": "none", "max_tokens": 500}
    whole = litellm.completion(**asked, **says("weather?"), tools=[TOOL]).choices[0].message
    streamed = litellm.stream_chunk_builder(list(litellm.completion(**asked, **says("hello"), stream=True)))
    (call,) = whole.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Bern"})
    assert streamed.choices[0].message.content == "Hello"


def test_embeddings(litellm: Any, agents: dict[str, Any]) -> None:
    answer = litellm.embedding(**agents, input=["a", "b"], dimensions=2, allowed_openai_params=["dimensions"])
    assert [each["embedding"] for each in answer.data] == [pytest.approx([0.6, 0.8])] * 2


def test_errors_have_their_classes(litellm: Any, agents: dict[str, Any]) -> None:
    with pytest.raises(litellm.BadRequestError, match="max_tokens"):
        litellm.completion(**agents, **says("hello"), max_tokens=-5)
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**agents | {"model": "openai/other"}, **says("hello"))


def test_leaving_a_stream_aborts(litellm: Any, engine: ScriptedEngine, agents: dict[str, Any]) -> None:
    """[8]"""
    before = len(engine.aborted)
    stream = litellm.completion(**agents, **says("wait"), stream=True)
    assert next(stream).choices[0].delta.content
    stream.completion_stream.close()  # it has no close of its own
    wait_until(lambda: len(engine.aborted) > before and not engine.open)
