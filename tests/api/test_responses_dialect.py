"""Response objects and their streams. Numbers in brackets: a known bug of other servers that is tested for."""

from typing import Any

import pytest
from isotherm.api.chat.events import ChatPiece, Ended, Reasoning, Text
from isotherm.api.responses.dialect import ResponsesDialect
from isotherm.api.responses.record import ResponseRecord
from isotherm.api.responses.request import ResponsesRequest
from isotherm.daemon.errors import EngineError
from support.dialects import CALL, EVERYTHING, streamed, whole


class Kept(list[dict[str, Any]]):
    """The final objects that a dialect has told of."""

    def dialect(self, **fields: Any) -> ResponsesDialect:
        return ResponsesDialect(ResponseRecord("m", ResponsesRequest(**fields)), self.append)


def replayed(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items that a strict client makes of a stream's deltas. Each `.done` must agree with what came before."""
    items: list[dict[str, Any]] = []
    for event in events[2:-1]:
        kind = event["type"]
        if kind == "response.output_item.added":
            assert event["output_index"] == len(items)
            items.append({**event["item"], "text": "", "open": True})
            continue
        item = items[event["output_index"]]
        assert item["open"]
        assert event.get("item_id", item["id"]) == item["id"]
        if kind.endswith(".delta"):
            item["text"] += event["delta"]
        elif kind == "response.output_item.done":
            assert event["item"]["id"] == item["id"]
            item["open"] = False
            item["done"] = event["item"]
        elif kind == "response.content_part.added":
            assert (event["content_index"], event["part"]["text"]) == (0, "")
        elif kind == "response.content_part.done":
            assert (event["content_index"], event["part"]["text"]) == (0, item["text"])
        else:
            assert kind.endswith(".done")
            assert event["arguments" if item["type"] == "function_call" else "text"] == item["text"]
    assert not any(item["open"] for item in items)
    return items


@pytest.mark.parametrize("apart", [True, False])
def test_stream_is_strict_and_complete(apart: bool) -> None:
    """[66]"""
    events = streamed(Kept().dialect(), *EVERYTHING, apart=apart)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [events[0]["type"], events[1]["type"]] == ["response.created", "response.in_progress"]
    items = replayed(events)
    assert [(item["type"], item["text"]) for item in items] == [
        ("reasoning", "I add."),
        ("message", "Let me see."),
        ("function_call", '{"a": 1}'),
        ("function_call", "{}"),
    ]
    assert [item["done"] for item in items] == events[-1]["response"]["output"]
    assert events[-1]["type"] == "response.completed"
    assert len({event["response"]["id"] for event in events if "response" in event}) == 1


def test_the_order_of_one_message() -> None:
    """[66]"""
    kinds = [event["type"] for event in streamed(Kept().dialect(), Text("a"), Text("b"), Ended("stop"))]
    assert [kind.removeprefix("response.") for kind in kinds] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]


def test_the_order_of_a_call_and_of_reasoning() -> None:
    """[66]"""
    kinds = [event["type"] for event in streamed(Kept().dialect(), Reasoning("a"), *CALL, Ended("tool_calls"))]
    assert [kind.removeprefix("response.") for kind in kinds[2:-1]] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]


def test_whole_says_the_same_but_for_ids() -> None:
    def bare(response: dict[str, Any]) -> list[dict[str, Any]]:
        return [{key: value for key, value in item.items() if key != "id"} for item in response["output"]]

    response = whole(Kept().dialect(), *EVERYTHING)
    assert bare(response) == bare(streamed(Kept().dialect(), *EVERYTHING)[-1]["response"])
    assert response["status"] == "completed"
    assert response["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 17,
    }


def test_cut_answer_is_incomplete() -> None:
    events = streamed(Kept().dialect(), Reasoning("a"), Text("b"), Ended("length"))
    response = events[-1]["response"]
    assert (events[-1]["type"], response["status"]) == ("response.incomplete", "incomplete")
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
    assert [item["done"] for item in replayed(events)] == response["output"]


def test_failure_ends_with_what_there_is() -> None:
    """[59]"""
    kept = Kept()
    dialect = kept.dialect()
    dialect.opening()
    dialect.chunks(ChatPiece(0, (Text("a"),)))
    event = dialect.failure(EngineError("the step failed"))
    assert event["type"] == "response.failed"
    assert event["response"]["error"] == {"code": "server_error", "message": "the step failed"}
    assert event["response"]["output"][0]["content"][0]["text"] == "a"
    assert kept == [event["response"]]


def test_every_end_is_told_once() -> None:
    kept = Kept()
    final = streamed(kept.dialect(), Text("a"), Ended("stop"))[-1]["response"]
    assert kept == [final]


def test_settings_are_echoed() -> None:
    response = whole(Kept().dialect(temperature=0.5, metadata={"a": "b"}, max_output_tokens=5), Ended("stop"))
    assert (response["temperature"], response["metadata"], response["max_output_tokens"]) == (0.5, {"a": "b"}, 5)
    assert (response["tool_choice"], response["tools"], response["truncation"]) == ("auto", [], "disabled")
