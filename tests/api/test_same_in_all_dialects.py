"""One answer of a model, read in every dialect."""

import json
from typing import Any

import pytest
from isotherm.api.service import Service
from isotherm.daemon.chat_template import ChatTemplate
from support.api_service import CHAT, MODEL, TEMPLATE, call, make_service
from support.dialects import sse
from support.scripted_engine import ByteTokenizer, ScriptedEngine, says

HERMES = "{# tools <tool_call> <think> </think> #}" + TEMPLATE
SAID = (
    "<think>\nHm\n</think>\n\nSo:\n"
    '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "é"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)
CALLS = [("add", {"a": 1, "b": "é"}), ("now", {})]
MEANT = ("Hm", "So:", CALLS)
NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
NAMES = ("add", "now")
FUNCTIONS = [{"type": "function", "function": {"name": name, "parameters": NOTHING}} for name in NAMES]
USER = [{"role": "user", "content": "x"}]


def service(said: str = SAID) -> Service:
    return make_service(ScriptedEngine(lambda submit: says(said)), chat_template=ChatTemplate(HERMES))


def post(path: str, body: dict[str, Any], served: Service | None = None) -> Any:
    response = call(served or service(), "POST", path, json={"model": MODEL, **body})
    assert response.status_code == 200, response.text
    return response


def test_openai() -> None:
    message = post(CHAT, {"messages": USER, "tools": FUNCTIONS}).json()["choices"][0]["message"]
    calls = [(each["function"]["name"], json.loads(each["function"]["arguments"])) for each in message["tool_calls"]]
    assert (message["reasoning_content"], message["content"], calls) == MEANT


ANTHROPIC: dict[str, Any] = {
    "messages": USER,
    "max_tokens": 500,
    "tools": [{"name": name, "input_schema": NOTHING} for name in NAMES],
}


def test_anthropic() -> None:
    thinking, text, *uses = post("/v1/messages", ANTHROPIC).json()["content"]
    assert (thinking["thinking"], text["text"], [(use["name"], use["input"]) for use in uses]) == MEANT


def test_anthropic_stream() -> None:
    """[64, 65]"""
    events = sse(post("/v1/messages", {**ANTHROPIC, "stream": True}).text)
    kinds = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    written = [event["delta"]["partial_json"] for event in events if event.get("delta", {}).get("partial_json")]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    assert "".join(written) == '{"a": 1, "b": "é"}{}'
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


@pytest.mark.parametrize("stream", [False, True])
def test_responses(stream: bool) -> None:
    """[64]"""
    tools = [{"type": "function", "name": name, "parameters": NOTHING} for name in NAMES]
    answer = post("/v1/responses", {"input": "x", "tools": tools, "stream": stream})
    response = sse(answer.text)[-1]["response"] if stream else answer.json()
    reasoning, message, *items = response["output"]
    calls = [(item["name"], json.loads(item["arguments"])) for item in items]
    assert (reasoning["content"][0]["text"], message["content"][0]["text"], calls) == MEANT


@pytest.mark.parametrize("stream", [False, True])
def test_ollama(stream: bool) -> None:
    """[10, 18, 64]"""
    answer = post("/api/chat", {"messages": USER, "tools": FUNCTIONS, "stream": stream})
    lines = [json.loads(line) for line in answer.text.splitlines()]
    messages = [line["message"] for line in lines]
    calls = [call["function"] for message in messages for call in message.get("tool_calls", ())]
    thinking = "".join(message.get("thinking", "") for message in messages)
    text = "".join(message["content"] for message in messages)
    assert (thinking, text, [(each["name"], each["arguments"]) for each in calls]) == MEANT
    assert [each["index"] for each in calls] == [0, 1]
    assert lines[-1]["done_reason"] == "tool_calls"


def test_prefilled_answer_goes_on() -> None:
    engine = ScriptedEngine(lambda submit: says(" 42."))
    served = make_service(engine)
    messages = [*USER, {"role": "assistant", "content": "It is"}]
    body = {"messages": messages, "max_tokens": 50}
    assert post("/v1/messages", body, served).json()["content"] == [{"type": "text", "text": " 42."}]
    post("/api/chat", {"messages": messages, "stream": False}, served)
    prompts = {ByteTokenizer().decode(submit.prompt) for submit in engine.submitted}
    assert prompts == {"user: x\nassistant: It is"}


def test_what_the_model_can_do_is_shown() -> None:
    assert post("/api/show", {}).json()["capabilities"] == ["completion", "tools", "thinking"]
