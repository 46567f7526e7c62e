"""Enforced calls drawn by a real engine with a model that knows nothing, in every family's format."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest
from isotherm.api.service import Service
from isotherm.daemon.chat_template import ChatTemplate
from isotherm.daemon.structures import Structures
from support.api_service import CHAT, app_of, make_service
from support.dialogues import FAMILIES, Family
from support.engine_runs import make_engine, running
from support.fake_runner import FakeRunner
from support.scripted_engine import VOCAB_SIZE, ByteTokenizer

PARAMETERS = {
    "type": "object",
    "properties": {"unit": {"enum": ["C", "F"]}, "loud": {"type": "boolean"}, "list": {"enum": [[1, 2], None]}},
    "required": ["unit"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in ("get_weather", "get_time")
]
# Of those whose reasoning can be turned off: a model that knows nothing would think without end.
SILENT = [family for family in FAMILIES if family.format != "harmony" and family.prefix != "<think>"]
IDS = [f"{family.format}-{place}" for place, family in enumerate(SILENT)]


@pytest.fixture
def service(family: Family) -> Iterator[Service]:
    runner = FakeRunner(vocab_size=VOCAB_SIZE, num_blocks=2000, max_context=2000, max_step_tokens=64)
    engine = make_engine(runner)
    template = ChatTemplate("{{ messages[0].content }}" + family.template + "{{ 'P' }}" + family.prefix)
    with running(engine):
        yield make_service(engine.client, structures=Structures(ByteTokenizer()), chat_template=template)


def answers(service: Service, requests: list[dict[str, Any]], *, together: bool) -> list[Any]:
    async def run() -> list[Any]:
        transport = httpx.ASGITransport(app_of(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            posts = [client.post(CHAT, json=body) for body in requests]
            responses = await asyncio.gather(*posts) if together else [await post for post in posts]
        assert [response.status_code for response in responses] == [200] * len(requests), responses[0].text
        return [response.json()["choices"][0] for response in responses]

    return asyncio.run(run())


def body(seed: int, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"{seed}"}], "seed": seed, **fields}


def bare(choice: Any) -> Any:
    for call in choice["message"].get("tool_calls", []):
        call["id"] = ""
    return choice


@pytest.mark.parametrize("family", SILENT, ids=IDS)
def test_required_calls_are_calls_whatever_the_model(service: Service) -> None:
    fields = {"tools": TOOLS, "reasoning_effort": "none", "parallel_tool_calls": False}
    requests = [body(seed, tool_choice="required", **fields) for seed in range(3)]
    for choice in answers(service, requests, together=True):
        (call,) = choice["message"]["tool_calls"]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        jsonschema.validate(json.loads(call["function"]["arguments"]), PARAMETERS)


@pytest.mark.parametrize("family", SILENT[:1], ids=IDS[:1])
def test_formed_called_and_plain_answers_do_not_change_each_other(service: Service) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": PARAMETERS}}
    kinds: list[dict[str, Any]] = [
        {"max_tokens": 30},
        {"max_tokens": 30, "tools": TOOLS},
        {"tools": TOOLS, "tool_choice": "required"},
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "get_time"}}},
        {"response_format": form},
        {"max_tokens": 200, "response_format": form, "tools": TOOLS},
    ]
    requests = [body(seed, **kind) for seed, kind in enumerate(kinds * 2)]
    alone = answers(service, requests, together=False)
    assert [bare(choice) for choice in answers(service, requests, together=True)] == [bare(choice) for choice in alone]
