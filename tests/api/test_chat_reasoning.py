"""Reasoning in /v1/chat/completions, and answers that go on with a message. Numbers in brackets: a known bug."""

from dataclasses import replace
from typing import Any

import pytest
from isotherm.api.service import Service
from isotherm.daemon.chat_template import ChatTemplate
from support.api_service import chat, chunks, make_service
from support.scripted_engine import ByteTokenizer, says

THINKS = "</think>{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
OPENS = THINKS + "{% if add_generation_prompt %}{{ '<think>\n' }}{% endif %}"


def service_of(answer: str, template: str = THINKS, **changes: Any) -> Service:
    return make_service(answer, chat_template=ChatTemplate(template), **changes)


def message_of(answer: str, template: str = THINKS, **fields: Any) -> dict[str, Any]:
    response = chat(service_of(answer, template), **fields)
    assert response.status_code == 200, response.text
    message: dict[str, Any] = response.json()["choices"][0]["message"]
    return message


def prompt_of(template: str, **fields: Any) -> str:
    service = service_of("x", template)
    response = chat(service, **fields)
    assert response.status_code == 200, response.text
    return ByteTokenizer().decode(service.client.submitted[0].prompt)


@pytest.mark.parametrize(
    ("template", "answer", "reasoning", "content"),
    [
        (THINKS, "<think>\nHm\n</think>\n\nYes", "Hm", "Yes"),
        (THINKS, "\n<think>Hm</think>Yes </think>", "Hm", "Yes </think>"),
        (THINKS, "Yes <think>no</think>", None, "Yes <think>no</think>"),
        (THINKS, "<think>Hm", "Hm", ""),
        (THINKS, "<think></think>Yes", None, "Yes"),
        (OPENS, "Hm</think>Yes", "Hm", "Yes"),
        (OPENS, "Hm", "Hm", ""),
        ("{{ messages[0].content }}", "<think>Hm</think>Yes", None, "<think>Hm</think>Yes"),
        ("[/THINK]", "[THINK]Hm[/THINK]Yes", "Hm", "Yes"),
        (
            "<|channel|><|message|>",
            "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>Y",
            "Hm",
            "Y",
        ),
        ("<|channel|><|message|><|start|>assistant", "<|channel|>final<|message|>Yes", None, "Yes"),
        ("<|channel|><|message|>", "Yes", None, "Yes"),
    ],
)
def test_reasoning_is_parted_in_both_modes(template: str, answer: str, reasoning: str | None, content: str) -> None:
    """[63, 64]"""
    message = message_of(answer, template)
    assert (message.get("reasoning_content"), message["content"]) == (reasoning, content)
    data = chunks(chat(service_of(answer, template), stream=True))
    deltas = [each["choices"][0]["delta"] for each in data]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == (reasoning or "")
    assert "".join(delta.get("content", "") for delta in deltas) == content


def test_reasoning_has_one_name_or_two() -> None:
    """[62]"""
    service = service_of("<think>Hm</think>Yes")
    assert "reasoning" not in chat(service).json()["choices"][0]["message"]
    both = replace(service, reasoning_names=("reasoning_content", "reasoning"))
    message = chat(both).json()["choices"][0]["message"]
    assert message["reasoning"] == message["reasoning_content"] == "Hm"
    deltas = [each["choices"][0]["delta"] for each in chunks(chat(both, stream=True))]
    assert [delta.get("reasoning") for delta in deltas] == [delta.get("reasoning_content") for delta in deltas]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_is_taken_back_under_both_names(name: str) -> None:
    """[35, 62]"""
    template = "</think>{{ messages[1].reasoning_content }}+{{ messages[1].reasoning }}"
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", name: "Hm"}]
    assert prompt_of(template, messages=messages) == "</think>Hm+Hm"


@pytest.mark.parametrize(("content", "told"), [(None, "Hm|"), ("I look.", "Hm\n\nI look.|")])
def test_harmony_templates_get_reasoning_as_thinking(content: str | None, told: str) -> None:
    template = "<|channel|><|message|>{{ messages[1].thinking }}|{{ messages[1].content }}"
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    answer = {"role": "assistant", "content": content, "reasoning_content": "Hm", "tool_calls": [call]}
    prompt = prompt_of(template, messages=[{"role": "user", "content": "x"}, answer])
    assert prompt == "<|channel|><|message|>" + told


def test_reasoning_tokens_are_counted() -> None:
    for answer in ("<think>Hm</think>Yes", says("<think>Hm</think>Yes", 0.0)):
        usage = chat(make_service(answer, chat_template=ChatTemplate(THINKS))).json()["usage"]
        assert usage["completion_tokens_details"]["reasoning_tokens"] == len("<think>Hm")


def test_reasoning_can_be_left_out() -> None:
    service = service_of("<think>Hm</think>Yes")
    body = chat(service, include_reasoning=False).json()
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "Yes", "refusal": None}
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


def test_stop_strings_act_on_reasoning_too() -> None:
    message = message_of("<think>Hm STOP</think>Yes", stop="STOP")
    assert (message["reasoning_content"], message["content"]) == ("Hm", "")


@pytest.mark.parametrize("stop", [">!", "</think>!"])
def test_a_tag_that_was_held_back_to_the_end_is_no_text(stop: str) -> None:
    """[3, 63]"""
    message = message_of("<think>Hm</think>", stop=stop)
    assert (message["reasoning_content"], message["content"]) == ("Hm", "")


def test_logprobs_cover_reasoning_and_tags() -> None:
    answer = "<think>Hm</think>Yes"
    response = chat(service_of(answer), logprobs=True)
    content = response.json()["choices"][0]["logprobs"]["content"]
    assert "".join(each["token"] for each in content) == answer


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, "//"),
        ({"reasoning_effort": "low"}, "low//"),
        ({"reasoning_effort": "none"}, "none/False/False"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "/True/"),
    ],
)
def test_templates_are_told_how_to_think(fields: dict[str, Any], told: str) -> None:
    template = "</think>{{ reasoning_effort }}/{{ enable_thinking }}/{{ thinking }}"
    assert prompt_of(template, **fields) == "</think>" + told


def test_harmony_knows_three_efforts() -> None:
    template = "<|channel|><|message|>{{ reasoning_effort }}"
    assert prompt_of(template, reasoning_effort="minimal").endswith("low")


def test_last_message_is_continued() -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "The "}]
    assert prompt_of(OPENS, messages=messages, continue_final_message=True) == "</think>user:x;assistant:The "


def test_a_continued_message_may_be_amid_reasoning() -> None:
    messages = [{"role": "user", "content": "<think>"}, {"role": "assistant", "content": "<think>H"}]
    message = message_of("m</think>Yes", THINKS, messages=messages, continue_final_message=True)
    assert (message["reasoning_content"], message["content"]) == ("m", "Yes")


def test_a_continued_message_does_not_begin_to_think() -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "The tag "}]
    assert message_of("<think>", THINKS, messages=messages, continue_final_message=True)["content"] == "<think>"


def test_a_harmony_message_is_continued_on_its_channel() -> None:
    template = "<|start|>user<|message|>x<|end|><|start|>assistant<|channel|>final<|message|>{{ messages[1].content }}"
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "The "}]
    assert message_of("end", template, messages=messages, continue_final_message=True)["content"] == "end"


def test_generation_prompt_can_be_left_out() -> None:
    assert "<think>\n" not in prompt_of(OPENS, add_generation_prompt=False)


@pytest.mark.parametrize(
    ("template", "fields", "param"),
    [
        (THINKS, {"add_generation_prompt": True}, "add_generation_prompt"),
        (THINKS, {"messages": [{"role": "user", "content": "x"}]}, "continue_final_message"),
        ("</think>", {}, "continue_final_message"),
    ],
)
def test_what_cannot_be_continued_is_named(template: str, fields: dict[str, Any], param: str) -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    response = chat(service_of("x", template), **{"messages": messages, "continue_final_message": True, **fields})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
