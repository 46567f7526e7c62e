"""How long a model may reason: each dialect's field for it, and what it means for the model that is served."""

from typing import Any

import pytest
from isotherm.daemon.chat_template import ChatTemplate
from isotherm.daemon.thoughts import ThoughtLimit
from support.api_service import call, chat, make_service

THINKS = "</think>{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
OPENS = THINKS + "{% if add_generation_prompt %}{{ '<think>\n' }}{% endif %}"
HARMONY = "<|channel|><|message|>"
PLAIN = "{{ messages[0].content }}"
USER = {"role": "user", "content": "hi"}


def limit_of(template: str, **fields: Any) -> ThoughtLimit | None:
    service = make_service("x", chat_template=ChatTemplate(template))
    response = chat(service, **fields)
    assert response.status_code == 200, response.text
    return service.client.submitted[0].thoughts


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"thinking_token_budget": 7}, 7),
        ({"thinking_budget": 0}, 0),
        ({"thinking_budget_tokens": 7}, 7),
        ({"reasoning": {"max_tokens": 7}}, 7),
        ({"reasoning": {"max_tokens": 7}, "thinking_budget": 9}, 9),
    ],
)
def test_fields_of_chat(fields: dict[str, Any], tokens: int) -> None:
    limit = limit_of(OPENS, **fields)
    assert limit is not None
    assert (limit.tokens, limit.opening, limit.closing) == (tokens, b"", b"</think>")
    assert limit.closing_ids == tuple(b"</think>")


def test_a_model_that_begins_to_reason_itself() -> None:
    limit = limit_of(THINKS, thinking_budget=7)
    assert limit is not None and limit.opening == b"<think>"


@pytest.mark.parametrize(
    ("template", "fields"),
    [
        (OPENS, {"thinking_budget": -1}),
        (OPENS, {"reasoning": {}}),
        (PLAIN, {"thinking_budget": 7}),
        (THINKS, {"thinking_budget": 7, "reasoning_effort": "none"}),
    ],
)
def test_nothing_to_bound(template: str, fields: dict[str, Any]) -> None:
    assert limit_of(template, **fields) is None


@pytest.mark.parametrize(
    ("template", "fields", "param"),
    [
        (HARMONY, {"thinking_budget": 7}, "thinking_token_budget"),
        (HARMONY, {"reasoning": {"max_tokens": 7}}, "reasoning.max_tokens"),
        (OPENS, {"thinking_budget": -2}, "thinking_budget"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(template: str, fields: dict[str, Any], param: str) -> None:
    response = chat(make_service("x", chat_template=ChatTemplate(template)), **fields)
    assert response.status_code == 400 and param in response.json()["error"]["param"]


@pytest.mark.parametrize("template", [OPENS, HARMONY])
def test_anthropics_field_is_kept_where_it_can_be(template: str) -> None:
    service = make_service("x", chat_template=ChatTemplate(template))
    body = {"messages": [USER], "max_tokens": 50, "thinking": {"type": "enabled", "budget_tokens": 7}}
    assert call(service, "POST", "/v1/messages", json=body).status_code == 200
    limit = service.client.submitted[0].thoughts
    assert limit is None if template == HARMONY else (limit is not None and limit.tokens == 7)


def test_reasoning_can_be_left_out_and_turned_off() -> None:
    service = make_service("Hm</think>Yes", chat_template=ChatTemplate(OPENS))
    message = chat(service, reasoning={"exclude": True}).json()["choices"][0]["message"]
    assert "reasoning_content" not in message and message["content"] == "Yes"
    template = "{{ enable_thinking }}" + THINKS
    service = make_service("x", chat_template=ChatTemplate(template))
    assert chat(service, reasoning={"enabled": False}).status_code == 200
    assert bytes(service.client.submitted[0].prompt).startswith(b"False")
