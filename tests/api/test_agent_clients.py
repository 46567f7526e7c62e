"""Tools and reasoning by clients that people build agents with, against a running server."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from isotherm.daemon.chat_template import ChatTemplate
from isotherm.daemon.messages import Submit
from support.api_service import MODEL, make_service, serving
from support.scripted_engine import ByteTokenizer, ScriptedEngine, Step, says

TEMPLATE = """tools <tool_call></think>{% for m in messages %}[{{ m.role }}:{{ m.content }}{% for c in m.tool_calls %}
{{ c.function.name }}({{ c.function.arguments.city }}){% endfor %}]{% endfor %}"""
ASKED = '<think>Hm</think>I look.<tool_call>{"name": "get_weather", "arguments": {"city": "Bern"}}</tool_call>'
TOLD = "<think>So.</think>It is sunny in Bern."
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def script(submit: Submit) -> list[Step]:
    """A model that calls, and answers once it has the result."""
    return says(TOLD if "[tool:sunny" in ByteTokenizer().decode(submit.prompt) else ASKED, 0.0)


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine(script, max_context=100_000)


@pytest.fixture(scope="module")
def url(engine: ScriptedEngine) -> Iterator[str]:
    with serving(make_service(engine, chat_template=ChatTemplate(TEMPLATE))) as port:
        yield f"http://127.0.0.1:{port}/v1"


def test_langchain_calls_and_comes_back(url: str) -> None:
    """[11]"""
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    question = HumanMessage("weather?")
    with httpx.Client() as http:
        chat = ChatOpenAI(model=MODEL, base_url=url, api_key="none", max_retries=0, http_client=http)
        model = chat.bind_tools([TOOL])
        called = model.invoke([question])
        streamed: Any = None
        for chunk in model.stream([question]):
            streamed = chunk if streamed is None else streamed + chunk
        result = ToolMessage("sunny", tool_call_id=called.tool_calls[0]["id"])
        answer = model.invoke([question, called, result])
    for message in (called, streamed):
        assert [(call["name"], call["args"]) for call in message.tool_calls] == [("get_weather", {"city": "Bern"})]
    assert answer.content == "It is sunny in Bern."


def test_pydantic_ai_runs_its_loop(url: str) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    asked: list[str] = []

    def get_weather(city: str) -> str:
        asked.append(city)
        return "sunny"

    async def run() -> str:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            model = OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client))
            return (await Agent(model, tools=[get_weather]).run("weather?")).output

    assert asyncio.run(run()) == "It is sunny in Bern."
    assert asked == ["Bern"]


def test_reasoning_and_calls_went_back_to_the_template(engine: ScriptedEngine, url: str) -> None:
    prompts = [ByteTokenizer().decode(submit.prompt) for submit in engine.submitted]
    assert any("get_weather(Bern)" in prompt for prompt in prompts)
