"""Clients that people build agents with, against a running server: tools, streams, and leaving them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
from support.agents import TOOL, agent_engine, agent_server
from support.api_service import MODEL, wait_until
from support.scripted_engine import ByteTokenizer, ScriptedEngine

Chat = Callable[..., Any]


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return agent_engine()


@pytest.fixture(scope="module")
def url(engine: ScriptedEngine) -> Iterator[str]:
    with agent_server(engine) as root:
        yield f"{root}/v1"


@pytest.fixture
def left(engine: ScriptedEngine) -> Iterator[None]:
    """The test's client leaves, which is noticed."""
    before = len(engine.aborted)
    yield
    wait_until(lambda: len(engine.aborted) > before and not engine.open)


@pytest.fixture
def langchain(url: str) -> Iterator[Chat]:
    from langchain_openai import ChatOpenAI

    with httpx.Client() as http:
        yield lambda **more: ChatOpenAI(
            model=MODEL, base_url=url, api_key="none", max_retries=0, http_client=http, **more
        )


@pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])
def test_langchain_calls_and_comes_back(langchain: Chat, responses: bool) -> None:
    """[11]"""
    from langchain_core.messages import HumanMessage, ToolMessage

    question = HumanMessage("weather?")
    model = langchain(use_responses_api=responses).bind_tools([TOOL])
    called = model.invoke([question])
    streamed: Any = None
    for chunk in model.stream([question]):
        streamed = chunk if streamed is None else streamed + chunk
    result = ToolMessage("sunny", tool_call_id=called.tool_calls[0]["id"])
    answer = model.invoke([question, called, result])
    for message in (called, streamed):
        assert [(call["name"], call["args"]) for call in message.tool_calls] == [("get_weather", {"city": "Bern"})]
        assert message.text == "I look."
    assert answer.text == "It is sunny in Bern."


@pytest.mark.usefixtures("left")
def test_leaving_langchain_s_stream_aborts(langchain: Chat) -> None:
    """[8]"""
    stream = langchain().stream("wait")
    assert next(chunk.text for chunk in stream if chunk.text) == "Hello"
    stream.close()


def test_langchain_gets_embeddings(url: str) -> None:
    from langchain_openai import OpenAIEmbeddings

    with httpx.Client() as http:
        model = OpenAIEmbeddings(
            model=MODEL, base_url=url, api_key="none", dimensions=2, http_client=http, check_embedding_ctx_length=False
        )  # with its check it would cut texts by the tokens of a model of OpenAI's
        assert model.embed_documents(["a", "b"]) == [pytest.approx([0.6, 0.8])] * 2


@asynccontextmanager
async def pydantic_agent(url: str, **more: Any) -> AsyncIterator[Any]:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        yield Agent(OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client)), **more)


def test_pydantic_ai_runs_its_loop_whole_and_streamed(url: str) -> None:
    asked: list[str] = []

    def get_weather(city: str) -> str:
        asked.append(city)
        return "sunny"

    async def run() -> tuple[str, str]:
        async with pydantic_agent(url, tools=[get_weather]) as agent:
            whole = (await agent.run("weather?")).output
            async with agent.run_stream("weather?") as stream:
                return whole, await stream.get_output()

    # It takes the first text that it is streamed for the answer, and calls the tool all the same.
    assert asyncio.run(run()) == ("It is sunny in Bern.", "I look.")
    assert asked == ["Bern", "Bern"]


@pytest.mark.usefixtures("left")
def test_leaving_pydantic_ai_s_stream_aborts(url: str) -> None:
    """[8]"""

    async def run() -> str:
        async with pydantic_agent(url) as agent, agent.run_stream("wait") as stream:
            async for text in stream.stream_text(debounce_by=None):
                await stream.cancel()
                return text
        return ""

    assert asyncio.run(run()) == "Hello"


def test_reasoning_and_calls_went_back_to_the_template(engine: ScriptedEngine, url: str) -> None:
    prompts = [ByteTokenizer().decode(submit.prompt) for submit in engine.submitted]
    assert any("get_weather(Bern)" in prompt for prompt in prompts)
