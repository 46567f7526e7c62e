"""Tools and reasoning by the official client against a real server, for every family of models."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from isotherm.daemon.chat_template import ChatTemplate
from openai.types.chat import ChatCompletionFunctionToolParam
from support.api_service import MODEL, make_service, serving
from support.dialogues import FAMILIES, TOOLS, Family
from support.scripted_engine import ScriptedEngine, says

SDK_TOOLS: list[ChatCompletionFunctionToolParam] = [
    {"type": "function", "function": {"name": tool.name, "parameters": dict(tool.parameters)}} for tool in TOOLS
]
IDS = [f"{family.format}-{place}" for place, family in enumerate(FAMILIES)]


@pytest.fixture
def client(family: Family) -> Iterator[openai.OpenAI]:
    template = ChatTemplate(family.template + "{{ 'P' }}" + family.prefix)
    service = make_service(ScriptedEngine(lambda submit: says(family.answer, 0.0)), chat_template=template)
    with (
        serving(service) as port,
        openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def told(message: Any) -> tuple[list[tuple[str, Any]], str, str]:
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]
    return calls, message.content or "", getattr(message, "reasoning_content", "") or ""


@pytest.mark.parametrize("family", FAMILIES, ids=IDS)
def test_calls_of_each_family(client: openai.OpenAI, family: Family) -> None:
    """Whole, by the client's own accumulator, and added up by hand."""
    expected = (list(family.calls), family.text, family.reasoning)
    given: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "tools": SDK_TOOLS}
    whole = client.chat.completions.create(**given).choices[0]
    assert (told(whole.message), whole.finish_reason) == (expected, "tool_calls")
    with client.chat.completions.stream(**given, stream_options={"include_usage": True}) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert (told(final.choices[0].message), final.choices[0].finish_reason) == (expected, "tool_calls")
    assert kinds.count("tool_calls.function.arguments.done") == 2
    assert final.usage is not None
    assert final.usage.completion_tokens_details is not None
    assert (final.usage.completion_tokens_details.reasoning_tokens or 0) >= len(family.reasoning)
