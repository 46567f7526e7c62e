"""What a request to /v1/messages wishes."""

import json
from typing import Any

import pytest
from isotherm.api.anthropic.request import MessagesRequest
from isotherm.api.anthropic.wish import read_wish
from isotherm.api.body import parse
from isotherm.api.chat.bounds import MAX_BLOCKS, MAX_MESSAGES, MAX_TOOLS
from isotherm.api.chat.wish import ChatWish, Thinking, Tool, ToolChoice
from isotherm.daemon.errors import InvalidRequestError
from support.api_service import MODEL, call, make_service

USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"name": "add", "description": "Adds.", "input_schema": SCHEMA}
USE = {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}


def wish(*messages: dict[str, Any], **fields: Any) -> ChatWish:
    body = {"max_tokens": 100, "messages": list(messages) or [USER], **fields}
    return read_wish(parse(json.dumps(body).encode(), MessagesRequest))


def blocks(role: str, *content: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(content)}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value, "cache_control": {"type": "ephemeral"}}


def test_system_prompt_goes_first() -> None:
    assert wish(system="Be kind.").messages == ({"role": "system", "content": "Be kind."}, USER)
    parts = [text("x-anthropic-billing-header: cch=123;"), text("Be kind."), text("Be brief.")]
    assert wish(system=parts).messages[0] == {"role": "system", "content": "Be kind.\nBe brief."}


def test_results_become_messages_between_the_texts() -> None:
    given = wish(
        USER,
        blocks("assistant", {"type": "thinking", "thinking": "hm", "signature": "s"}, text("Well."), USE),
        blocks(
            "user",
            {"type": "tool_result", "tool_use_id": "t1", "content": [text("1"), text("2")]},
            {"type": "tool_result", "tool_use_id": "t2", "content": "lost", "is_error": True},
            text("go on"),
        ),
    )
    function = {"name": "add", "arguments": '{"a": 1}'}
    assert given.messages[1:] == (
        {
            "role": "assistant",
            "content": "Well.",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "t1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "1\n2", "name": "add"},
        {"role": "tool", "tool_call_id": "t2", "content": "Error: lost"},
        {"role": "user", "content": "go on"},
    )
    assert given.add_generation_prompt


def test_last_message_of_the_assistant_is_continued() -> None:
    given = wish(USER, {"role": "assistant", "content": "The answer is"})
    assert (given.continue_final_message, given.add_generation_prompt) == (True, False)


def test_tools() -> None:
    assert wish(tools=[TOOL]).tools == (Tool("add", "Adds.", SCHEMA),)


@pytest.mark.parametrize(
    ("choice", "expected", "parallel"),
    [
        ({"type": "auto"}, ToolChoice(), True),
        ({"type": "any", "disable_parallel_tool_use": True}, ToolChoice("required"), False),
        ({"type": "tool", "name": "add"}, ToolChoice("named", "add"), True),
        ({"type": "none"}, ToolChoice("none"), True),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else None,
)
def test_tool_choice(choice: dict[str, Any], expected: ToolChoice, parallel: bool) -> None:
    given = wish(tools=[TOOL], tool_choice=choice)
    assert (given.tool_choice, given.parallel_tool_calls) == (expected, parallel)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Thinking()),
        ({"thinking": {"type": "enabled", "budget_tokens": 50}}, Thinking(enabled=True, budget=50)),
        ({"thinking": {"type": "disabled"}}, Thinking(enabled=False)),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, Thinking(effort="low")),
    ],
    ids=["absent", "enabled", "disabled", "adaptive"],
)
def test_thinking(fields: dict[str, Any], expected: Thinking) -> None:
    assert wish(**fields).thinking == expected


def test_sampling_and_structure() -> None:
    given = wish(
        temperature=0.5,
        top_k=3,
        top_p=0.5,
        stop_sequences=["END"],
        output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
    )
    assert given.sampling == {"temperature": 0.5, "top_k": 3, "top_p": 0.5, "stop": ("END",)}
    assert given.max_tokens == 100
    assert given.structure is not None
    assert (given.structure.kind, json.loads(given.structure.source)) == ("json_schema", SCHEMA)


IMAGE = {"type": "image", "source": {"type": "url", "url": "x"}}
REFUSED: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 1.5},
    "thinking": {"thinking": {"type": "enabled", "budget_tokens": 100}},
    "messages[0].content[0] is a block of type 'image'": {"messages": [blocks("user", IMAGE)]},
    "messages[0].content[0].content[0] is a block of type 'image'": {
        "messages": [blocks("user", {"type": "tool_result", "tool_use_id": "t", "content": [IMAGE]})]
    },
    "tools[0].type is 'web_search_20250305'": {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    "tools[0].input_schema": {"tools": [{"name": "add"}]},
    "a second time": {"tools": [TOOL, TOOL]},
    "there are no tools": {"tool_choice": {"type": "any"}},
    "names 'sub'": {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "sub"}},
    "at least one message": {"messages": []},
    "messages[0].role": {"messages": [{"role": "critic", "content": "hi"}]},
    "results must follow": {"messages": [USER, blocks("assistant", USE)]},
    "messages has": {"messages": [USER] * (MAX_MESSAGES + 1)},
    "blocks": {"messages": [blocks("user", *[text("a")] * (MAX_BLOCKS // 2 + 1))] * 2},
    "tools has": {"tools": [TOOL] * (MAX_TOOLS + 1)},
    "stop_sequences has": {"stop_sequences": ["a"] * 100},
    "mcp_servers": {"mcp_servers": [{"name": "x"}]},
}


@pytest.mark.parametrize("words", list(REFUSED))
def test_refusals_name_what_is_wrong(words: str) -> None:
    body = {"model": MODEL, "max_tokens": 50, "messages": [USER], **REFUSED[words]}
    response = call(make_service(), "POST", "/v1/messages", json=body)
    assert response.status_code == 400
    error = response.json()
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    assert words in error["error"]["message"]


def test_unknown_fields_are_noted_and_usual_ones_are_not() -> None:
    service = make_service()
    body = {"max_tokens": 5, "messages": [USER], "metadata": {"user_id": "u"}, "frobnicate": 1}
    assert call(service, "POST", "/v1/messages?beta=true", json=body).status_code == 200
    assert [event.detail for event in service.events.recent()] == ["clients send 'frobnicate', which is ignored"]


def test_arguments_that_are_no_object() -> None:
    with pytest.raises(InvalidRequestError, match="input must be an object"):
        wish(USER, blocks("assistant", {**USE, "input": "a"}), USER)
