"""Enforced calls, and answers of a given form from models that think first or have tools."""

from typing import Any

import pytest
from isotherm.api.service import Service
from isotherm.daemon.chat_template import ChatTemplate
from isotherm.daemon.structure import Structure
from llguidance import LLMatcher
from support.api_service import chat, make_service
from support.dialogues import TOOLS
from support.scripted_engine import says

HERMES = "tools <tool_call>"
QWEN = "<think> </think> tools <tool_call>"
R1 = "tools </think>{{ '<think>' }}"
HARMONY = "tools <|channel|> <|message|> <|start|>assistant"
FIELDS = [{"type": "function", "function": {"name": tool.name, "parameters": dict(tool.parameters)}} for tool in TOOLS]
CALL = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
WEATHER = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "x"}}\n</tool_call>'
JSON = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"properties": {"a": {"type": "integer"}}}}}
NAMED = {"type": "function", "function": {"name": "clock"}}


def service_of(template: str, answer: str = CALL) -> Service:
    return make_service(says(answer), chat_template=ChatTemplate(template))


def structure_of(template: str, **fields: Any) -> tuple[Service, Structure]:
    service = service_of(template)
    response = chat(service, **fields)
    assert response.status_code == 200, response.text
    structure = service.client.submitted[0].sampling.structure
    assert structure is not None
    return service, structure


def accepts(made: tuple[Service, Structure], *texts: str) -> list[bool]:
    service, structure = made
    tokenizer = service.structures._table.matcher_tokenizer
    source = structure.source
    if structure.kind == "json_schema":
        source = LLMatcher.grammar_from_json_schema(source)
    results = []
    for text in texts:
        matcher = LLMatcher(tokenizer, source)
        results.append(matcher.consume_tokens(list(text.encode())) and matcher.is_accepting())
    return results


def test_required_calls_are_of_the_tools() -> None:
    made = structure_of(HERMES, tools=FIELDS, tool_choice="required")
    assert made[1].trigger is None
    assert accepts(made, CALL, f"{CALL}\n{WEATHER}", "Hi", CALL.replace("clock", "x")) == [True, True, False, False]


def test_a_named_call_is_that_one_and_ends_with_stop() -> None:
    """[16]"""
    made = structure_of(HERMES, tools=FIELDS, tool_choice=NAMED)
    assert accepts(made, CALL, f"{CALL}\n{CALL}", WEATHER) == [True, False, False]
    choice = chat(service_of(HERMES), tools=FIELDS, tool_choice=NAMED).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "clock", "arguments": "{}"}


def test_a_required_call_ends_with_tool_calls() -> None:
    """[16]"""
    choice = chat(service_of(HERMES), tools=FIELDS, tool_choice="required").json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"


def test_required_calls_are_one_where_not_parallel() -> None:
    made = structure_of(HERMES, tools=FIELDS, tool_choice="required", parallel_tool_calls=False)
    assert accepts(made, CALL, f"{CALL}\n{CALL}") == [True, False]


def test_required_calls_are_of_those_allowed() -> None:
    allowed = {"mode": "required", "tools": [NAMED]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    assert accepts(structure_of(HERMES, tools=FIELDS, tool_choice=choice), CALL, WEATHER) == [True, False]


def test_a_model_may_think_before_a_required_call() -> None:
    made = structure_of(QWEN, tools=FIELDS, tool_choice="required")
    assert accepts(made, f"<think>\nHm <x>\n</think>\n\n{CALL}", CALL, "<think>Hm") == [True, True, False]
    silent = structure_of(QWEN, tools=FIELDS, tool_choice="required", reasoning_effort="none")
    assert accepts(silent, CALL, f"<think></think>{CALL}") == [True, False]


def test_a_prompt_that_opens_reasoning_lets_the_form_wait() -> None:
    service, structure = structure_of(HERMES + R1, tools=FIELDS, tool_choice="required")
    assert structure.trigger == "</think>"
    assert accepts((service, structure), CALL, f"\n\n{CALL}") == [True, True]


def test_harmony_calls_come_after_analysis() -> None:
    made = structure_of(HARMONY, tools=FIELDS, tool_choice="required")
    call = "<|channel|>commentary to=functions.clock <|constrain|>json<|message|>{}"
    thought = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant"
    assert accepts(made, thought + call, call, thought + "<|channel|>final<|message|>x") == [True, True, False]


@pytest.mark.parametrize(
    ("template", "before"),
    [
        ("{{ messages }}", ""),
        (QWEN, ""),
        (QWEN, "<think>Hm</think>\n"),
        (HARMONY, "<|channel|>final<|message|>"),
        (HARMONY, "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>"),
    ],
)
def test_an_answer_of_a_given_form_comes_after_reasoning(template: str, before: str) -> None:
    made = structure_of(template, response_format=JSON)
    assert accepts(made, before + '{"a": 1}', before + '{"a": "x"}', before + "Hi") == [True, False, False]


def test_an_answer_of_a_given_form_waits_for_the_end_of_reasoning() -> None:
    _, structure = structure_of(R1, response_format=JSON)
    assert structure.trigger == "</think>"


def test_with_tools_an_answer_is_of_its_form_or_calls() -> None:
    made = structure_of(HERMES, response_format=JSON, tools=FIELDS)
    assert accepts(made, '{"a": 1}', CALL, "Hi") == [True, True, False]


def test_without_demands_answers_are_free() -> None:
    service = service_of(HERMES)
    for fields in ({"tools": FIELDS}, {"tools": FIELDS, "tool_choice": "none"}, {}):
        assert chat(service, **fields).status_code == 200
    assert [submit.sampling.structure for submit in service.client.submitted] == [None] * 3


@pytest.mark.parametrize("schema", [{"type": "object", "not": {}}, {"properties": {"a": {"type": "text"}}}])
def test_schemas_that_cannot_be_kept_are_named(schema: dict[str, Any]) -> None:
    tools = [FIELDS[0], {"type": "function", "function": {"name": "f", "parameters": schema}}]
    response = chat(service_of(HERMES), tools=tools, tool_choice="required")
    assert response.status_code == 400
    assert str(response.json()["error"]["param"]).startswith("tools[1].function.parameters"), response.text


def test_a_grammar_beside_tools_is_named() -> None:
    response = chat(service_of(HERMES), tools=FIELDS, structured_outputs={"grammar": 'start: "a"'})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")


def test_choices_may_hold_slashes() -> None:
    made = structure_of(QWEN, structured_outputs={"choice": ["a/b", "c"]})
    assert accepts(made, "a/b", "<think>x</think>c", "ab") == [True, True, False]
