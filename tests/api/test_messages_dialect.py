"""Anthropic's message and stream of events. Numbers in brackets: a known bug of other servers that is tested for."""

from typing import Any

import pytest
from isotherm.api.anthropic.dialect import MessagesDialect
from isotherm.api.chat.events import CallArguments, CallBegan, ChatEvent, Ended, Reasoning, Text
from support.dialects import CALL, EVERYTHING, streamed, whole


def dialect() -> MessagesDialect:
    return MessagesDialect("m", 10)


def replayed(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What a strict client makes of a stream: a block opens after the last one has closed, and deltas fit its type."""
    assert events[0]["type"] == "message_start"
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    message: dict[str, Any] = events[0]["message"]
    open_index = None
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            assert open_index is None
            assert event["index"] == len(message["content"])
            open_index = event["index"]
            message["content"].append({**event["content_block"], "json": ""})
            continue
        assert event["index"] == open_index
        if event["type"] == "content_block_stop":
            open_index = None
            continue
        block, delta = message["content"][open_index], event["delta"]
        kind, key = {
            "text_delta": ("text", "text"),
            "thinking_delta": ("thinking", "thinking"),
            "signature_delta": ("thinking", "signature"),
            "input_json_delta": ("tool_use", "partial_json"),
        }[delta["type"]]
        assert block["type"] == kind
        block["json" if kind == "tool_use" else key] += delta[key]
    assert open_index is None
    return {**message, **events[-2]["delta"], "usage": events[-2]["usage"]}


@pytest.mark.parametrize("apart", [True, False])
def test_stream_is_strict_and_complete(apart: bool) -> None:
    """[65]"""
    message = replayed(streamed(dialect(), *EVERYTHING, apart=apart))
    thinking, text, first, second = message["content"]
    assert (thinking["thinking"], text["text"]) == ("I add.", "Let me see.")
    assert (first["id"], first["name"], first["json"], first["input"]) == ("call_1", "add", '{"a": 1}', {})
    assert (second["id"], second["name"], second["json"]) == ("call_2", "sub", "{}")
    assert message["stop_reason"] == "tool_use"


def test_whole_says_the_same() -> None:
    message = whole(dialect(), *EVERYTHING)
    assert [block["type"] for block in message["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert message["content"][0]["thinking"] == "I add."
    assert message["content"][2] == {"type": "tool_use", "id": "call_1", "name": "add", "input": {"a": 1}}
    assert message["usage"] == replayed(streamed(dialect(), *EVERYTHING))["usage"]


def test_thoughts_carry_one_signature_in_both_modes() -> None:
    events = (Reasoning("so"), Ended("stop"))
    streamed_block = replayed(streamed(dialect(), *events))["content"][0]
    assert streamed_block["signature"] == whole(dialect(), *events)["content"][0]["signature"] != ""


def test_cached_tokens_are_told_apart() -> None:
    assert whole(dialect(), Ended("stop"))["usage"] == {
        "input_tokens": 6,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 7,
    }


@pytest.mark.parametrize(
    ("ended", "reason", "sequence"),
    [
        (Ended("stop"), "end_turn", None),
        (Ended("length"), "max_tokens", None),
        (Ended("stop", "END"), "stop_sequence", "END"),
        (Ended("tool_calls"), "tool_use", None),
    ],
)
def test_stop_reasons(ended: Ended, reason: str, sequence: str | None) -> None:
    message = whole(dialect(), Text("a"), ended)
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"a": "b", "c": [1, ', {"a": "b", "c": [1]}),
        ("", {}),
        ("{nonsense", {"unparsed": "{nonsense"}),
        ("[1]", {"unparsed": "[1]"}),
    ],
)
def test_arguments_are_an_object_whatever_was_written(written: str, arguments: dict[str, Any]) -> None:
    events: list[ChatEvent] = [CallBegan(0, "c", "f"), CallArguments(0, written), Ended("length")]
    assert whole(dialect(), *events)["content"][0]["input"] == arguments


def test_text_after_a_call_is_a_block_of_its_own() -> None:
    message = replayed(streamed(dialect(), Text("a"), *CALL, Text("b"), Ended("tool_calls")))
    assert [block["type"] for block in message["content"]] == ["text", "tool_use", "text"]
