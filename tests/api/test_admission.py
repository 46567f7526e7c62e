"""Who is let in, on every path that generates, in the words of its dialect."""

from typing import Any

import pytest
from isotherm.api.chat.bounds import MAX_MESSAGES, MAX_TOOLS
from isotherm.api.service import Service
from isotherm.daemon.chat_template import ChatTemplate
from isotherm.daemon.config import key_digest
from isotherm.daemon.errors import OverloadedError
from support.api_service import CHAT, COMPLETIONS, MODEL, TEMPLATE, call, make_service
from support.scripted_engine import ByteTokenizer, ScriptedEngine, says

USER = [{"role": "user", "content": "x"}]
ASKED: dict[str, dict[str, Any]] = {
    CHAT: {"messages": USER},
    COMPLETIONS: {"prompt": "x"},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": USER, "max_tokens": 5},
    "/api/chat": {"messages": USER, "stream": False},
    "/api/generate": {"prompt": "x", "stream": False},
    "/v1/embeddings": {"input": "x"},
    "/api/embed": {"input": "x"},
}
CONVERSATIONS = {
    CHAT: lambda many: {"messages": many},
    "/v1/responses": lambda many: {"input": many},
    "/v1/messages": lambda many: {"messages": many, "max_tokens": 5},
    "/api/chat": lambda many: {"messages": many},
}
PATHS = pytest.mark.parametrize("path", ASKED)
TALKS = pytest.mark.parametrize("path", CONVERSATIONS)


class NoTokenizer(ByteTokenizer):
    def encode(self, text: str, **options: bool) -> list[int]:
        raise AssertionError("worked on a prompt that was to be refused")


def post(service: Service, path: str, body: dict[str, Any], **headers: str) -> Any:
    return call(service, "POST", path, json={"model": MODEL, **body}, headers=headers)


def words_of(path: str, body: dict[str, Any]) -> tuple[str | None, str]:
    """Type and message of an error, by the dialect of the path."""
    if path.startswith("/api/"):
        assert list(body) == ["error"]
        return None, body["error"]
    if path == "/v1/messages":
        assert (body["type"], sorted(body["error"])) == ("error", ["message", "type"])
    return body["error"]["type"], body["error"]["message"]


@PATHS
def test_a_full_queue_is_told_before_anything_is_done(path: str) -> None:
    """[53]"""
    engine = ScriptedEngine(lambda submit: says("no"), refuse=OverloadedError("the queue is full", 2.2))
    answer = post(make_service(engine, tokenizer=NoTokenizer()), path, ASKED[path])
    assert (answer.status_code, answer.headers["retry-after"], answer.headers["x-should-retry"]) == (429, "3", "true")
    kind, message = words_of(path, answer.json())
    assert kind in (None, "rate_limit_error")
    assert message == "the queue is full"


@PATHS
def test_requests_are_on_the_account_of_their_key(path: str) -> None:
    engine = ScriptedEngine(lambda submit: says("Hi"))
    digest = key_digest("sesame")
    service = make_service(engine, api_keys=frozenset({digest}), key_names={digest: "editor"})
    assert post(service, path, ASKED[path], **{"x-api-key": "sesame"}).status_code == 200
    assert {submit.tenant for submit in engine.submitted} == {"editor"}


@TALKS
def test_a_conversation_has_so_many_messages_and_no_more(path: str) -> None:
    service = make_service(chat_template=ChatTemplate("{# only counted #}x"))
    roles = ("user", "assistant")
    many = [{"role": roles[place % 2], "content": "x"} for place in range(MAX_MESSAGES + 1)]
    answer = post(service, path, CONVERSATIONS[path](many))
    assert answer.status_code == 400
    assert f"has {MAX_MESSAGES + 1} entries; at most {MAX_MESSAGES} are allowed" in words_of(path, answer.json())[1]
    assert post(service, path, CONVERSATIONS[path](many[2:])).status_code == 200


@TALKS
def test_a_request_has_so_many_tools_and_no_more(path: str) -> None:
    flat = path in ("/v1/responses", "/v1/messages")
    schema = "input_schema" if path == "/v1/messages" else "parameters"
    tools: list[dict[str, Any]] = [{"name": f"t{place}", schema: {"type": "object"}} for place in range(MAX_TOOLS + 1)]
    if path == "/v1/responses":
        tools = [{"type": "function", **tool} for tool in tools]
    elif not flat:
        tools = [{"type": "function", "function": tool} for tool in tools]
    service = make_service(chat_template=ChatTemplate("{# tools #}" + TEMPLATE))
    answer = post(service, path, {**CONVERSATIONS[path](USER), "tools": tools})
    assert answer.status_code == 400
    assert str(MAX_TOOLS) in words_of(path, answer.json())[1]
