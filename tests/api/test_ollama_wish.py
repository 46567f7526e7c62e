"""What requests to /api/chat and /api/generate wish."""

from typing import Any

import pytest
from isotherm.api.chat.wish import Thinking
from isotherm.api.ollama.conversation import read_messages
from support.api_service import MODEL, call, make_service
from support.noted_reader import read_notes

USER = {"role": "user", "content": "hi"}


def use(name: str, **fields: Any) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": {"a": 1}}, **fields}


def test_results_find_their_calls() -> None:
    messages = read_messages(
        [
            USER,
            {
                "role": "assistant",
                "content": "",
                "thinking": "hm",
                "tool_calls": [use("add"), use("sub"), use("x", id="own")],
            },
            {"role": "tool", "content": "1", "tool_name": "sub"},
            {"role": "tool", "content": "2", "tool_call_id": "own"},
            {"role": "tool", "content": "3"},
        ]
    )
    calls = messages[1]["tool_calls"]
    assert messages[1]["reasoning_content"] == "hm"
    assert [call["function"] for call in calls[:1]] == [{"name": "add", "arguments": '{"a": 1}'}]
    assert len({call["id"] for call in calls}) == 3
    assert [(message["tool_call_id"], message["name"]) for message in messages[2:]] == [
        (calls[1]["id"], "sub"),
        ("own", "x"),
        (calls[0]["id"], "add"),
    ]


@pytest.mark.parametrize(
    ("think", "expected"),
    [(None, Thinking()), (False, Thinking(enabled=False)), ("high", Thinking(enabled=True, effort="high"))],
)
def test_think(monkeypatch: pytest.MonkeyPatch, think: Any, expected: Thinking) -> None:
    wishes = read_notes(monkeypatch, "isotherm.api.ollama.generation")
    body = {"model": MODEL, "messages": [USER], "think": think, "stream": False}
    assert call(make_service(), "POST", "/api/chat", json=body).status_code == 200
    assert wishes[0].thinking == expected


@pytest.mark.parametrize(
    ("form", "source"), [("json", '{"type":"object"}'), ({"type": "object"}, '{"type":"object"}'), ("", None)]
)
def test_format(monkeypatch: pytest.MonkeyPatch, form: Any, source: str | None) -> None:
    wishes = read_notes(monkeypatch, "isotherm.api.ollama.generation")
    body = {"model": MODEL, "prompt": "hi", "format": form, "stream": False}
    assert call(make_service(), "POST", "/api/generate", json=body).status_code == 200
    structure = wishes[0].structure
    assert (structure and structure.source) == source


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "messages[0].images": ("chat", {"messages": [{**USER, "images": ["aGk="]}]}),
    "messages[0].content": ("chat", {"messages": [{"role": "user", "content": [1]}]}),
    "messages[0].tool_calls[0].function": ("chat", {"messages": [{"role": "assistant", "tool_calls": [{}]}]}),
    "format must be": ("chat", {"messages": [USER], "format": "xml"}),
    "think must be": ("chat", {"messages": [USER], "think": "hard"}),
    "images is not supported": ("generate", {"prompt": "x", "images": ["aGk="]}),
    "template is not supported": ("generate", {"prompt": "x", "template": "{{ .Prompt }}"}),
    "format is not supported together with raw": ("generate", {"prompt": "x", "raw": True, "format": "json"}),
    "top_p": ("generate", {"prompt": "x", "options": {"top_p": 3}}),
    "options.seed": ("generate", {"prompt": "x", "options": {"seed": "a"}}),
}


@pytest.mark.parametrize("words", list(REFUSED))
def test_refusals_name_what_is_wrong(words: str) -> None:
    path, fields = REFUSED[words]
    response = call(make_service(), "POST", f"/api/{path}", json={"model": MODEL, "stream": False, **fields})
    assert (response.status_code, list(response.json())) == (400, ["error"])
    assert words in response.json()["error"]


def test_options_of_loading_are_ignored_in_silence_and_unknown_ones_noted() -> None:
    service = make_service()
    body = {"model": MODEL, "prompt": "x", "keep_alive": "5m", "options": {"num_ctx": 1 << 20, "mystery": 2}}
    assert call(service, "POST", "/api/generate", json=body).status_code == 200
    assert [event.detail for event in service.events.recent()] == ["clients send 'mystery', which is ignored"]


@pytest.mark.parametrize("options", [{"mirostat": 2}, {"repeat_last_n": 64}, {"typical_p": 0.5}])
def test_options_that_would_change_the_text_are_refused_by_name(options: dict[str, Any]) -> None:
    body = {"model": MODEL, "prompt": "x", "stream": False, "options": options}
    response = call(make_service(), "POST", "/api/generate", json=body)
    assert response.status_code == 400 and next(iter(options)) in response.json()["error"]


def test_options_at_values_that_ask_for_nothing_are_accepted() -> None:
    options = {"mirostat": 0, "repeat_last_n": -1, "typical_p": 1.0}
    body = {"model": MODEL, "prompt": "x", "stream": False, "options": options}
    assert call(make_service(), "POST", "/api/generate", json=body).status_code == 200
