"""What a request to /v1/responses wishes."""

import json
from typing import Any

import pytest
from isotherm.api.body import parse
from isotherm.api.chat.bounds import MAX_MESSAGES
from isotherm.api.chat.wish import ChatWish, Thinking, Tool, ToolChoice
from isotherm.api.responses.items import read_items
from isotherm.api.responses.request import ResponsesRequest
from isotherm.api.responses.wish import read_wish
from support.api_service import call, make_service

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "name": "add", "description": "Adds.", "parameters": SCHEMA, "strict": True}


def wish(value: Any = "hi", **fields: Any) -> ChatWish:
    body = parse(json.dumps({"input": value, **fields}).encode(), ResponsesRequest)
    return read_wish(body, read_items(body.input))


def call_item(call_id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "add", "arguments": "{}"}


def called(call_id: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "add", "arguments": "{}"}}


def test_what_comes_first_is_one_system_message() -> None:
    given = wish(
        [
            {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
            {"type": "message", "role": "user", "content": "hi"},
            {"role": "system", "content": "Later."},
        ],
        instructions="Be kind.",
    )
    assert given.messages == (
        {"role": "system", "content": "Be kind.\n\nBe brief."},
        {"role": "user", "content": "hi"},
        {"role": "system", "content": "Later."},
    )


def test_a_turn_of_the_model_is_one_message() -> None:
    given = wish(
        [
            {"role": "user", "content": "hi"},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "Well."}]},
            call_item("c1"),
            call_item("c2"),
            {"type": "function_call_output", "call_id": "c1", "output": "1"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]},
            {"role": "assistant", "content": "Two."},
            {"role": "assistant", "content": "Really."},
        ]
    )
    assert given.messages[1:] == (
        {
            "role": "assistant",
            "content": "Well.",
            "reasoning_content": "hm",
            "tool_calls": [called("c1"), called("c2")],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "1", "name": "add"},
        {"role": "tool", "tool_call_id": "c2", "content": "2", "name": "add"},
        {"role": "assistant", "content": "Two.", "reasoning_content": "so"},
        {"role": "assistant", "content": "Really."},
    )


def test_items_get_ids_and_keep_their_own() -> None:
    first, second = read_items([{"role": "user", "content": "a", "id": "msg_1"}, {"role": "user", "content": "b"}])
    assert first["id"] == "msg_1"
    assert second["id"].startswith("msg_")


def test_tools_and_choice() -> None:
    assert wish(tools=[TOOL]).tools == (Tool("add", "Adds.", SCHEMA, strict=True),)
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "add"}]}
    chosen = [wish(tools=[TOOL], tool_choice=choice).tool_choice for choice in ("auto", "none", "required", allowed)]
    named = wish(tools=[TOOL], tool_choice={"type": "function", "name": "add"}).tool_choice
    assert chosen == [
        ToolChoice(),
        ToolChoice("none"),
        ToolChoice("required"),
        ToolChoice("required", allowed=frozenset({"add"})),
    ]
    assert named == ToolChoice("named", "add")


@pytest.mark.parametrize(("effort", "expected"), [("low", Thinking(effort="low")), ("none", Thinking(enabled=False))])
def test_reasoning(effort: str, expected: Thinking) -> None:
    assert wish(reasoning={"effort": effort, "summary": "auto"}).thinking == expected


def test_sampling_and_limits() -> None:
    given = wish(temperature=0.5, top_p=0.25, seed=3, max_output_tokens=9, parallel_tool_calls=False, stream=True)
    assert given.sampling == {"temperature": 0.5, "top_p": 0.25, "seed": 3}
    assert (given.max_tokens, given.max_tokens_param) == (9, "max_output_tokens")
    assert (given.parallel_tool_calls, given.stream) == (False, True)


def test_structures() -> None:
    plain, any_object, schema = (
        wish(text={"format": wanted}).structure
        for wanted in (
            {"type": "text"},
            {"type": "json_object"},
            {"type": "json_schema", "name": "n", "schema": SCHEMA},
        )
    )
    assert plain is None
    assert any_object is not None
    assert schema is not None
    assert json.loads(any_object.source) == {"type": "object"}
    assert (schema.kind, json.loads(schema.source)) == ("json_schema", SCHEMA)


REFUSED: dict[str, dict[str, Any]] = {
    "input[0] has the type 'item_reference'": {"input": [{"type": "item_reference", "id": "x"}]},
    "input[0].content[0] is a part of type 'input_image'": {
        "input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]
    },
    "input[0].role": {"input": [{"role": "critic", "content": "x"}]},
    "at least one item": {"input": []},
    "input has": {"input": [{"role": "user", "content": "x"}] * (MAX_MESSAGES + 1)},
    "tools[0].type is 'web_search'": {"tools": [{"type": "web_search"}]},
    "tool_choice names 'sub'": {"tools": [TOOL], "tool_choice": {"type": "function", "name": "sub"}},
    "text.format": {"text": {"format": {"type": "json_schema", "name": "n"}}},
    "include holds 'file_search_call.results'": {"include": ["file_search_call.results"]},
    "metadata": {"metadata": {"k": "v" * 600}},
    "previous_response_id": {"previous_response_id": "x" * 300},
    "max_output_tokens is 5000": {"max_output_tokens": 5000},
    "max_output_tokens: Input": {"max_output_tokens": 0},
}


@pytest.mark.parametrize("words", list(REFUSED))
def test_refusals_name_what_is_wrong(words: str) -> None:
    response = call(make_service(), "POST", "/v1/responses", json={"input": "x", **REFUSED[words]})
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "order=up"])
def test_pages_are_bounded(query: str) -> None:
    service = make_service()
    response = call(service, "GET", f"/v1/responses/resp_x/input_items?{query}")
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")
