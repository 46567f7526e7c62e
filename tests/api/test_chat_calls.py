"""Tools in /v1/chat/completions. Numbers in brackets: a known bug of other servers."""

import json
from typing import Any

import pytest
from isotherm.api.service import Service
from isotherm.daemon.chat_template import ChatTemplate
from support.api_service import chat, chunks, make_service
from support.dialogues import ARGUMENTS, FAMILIES, TOOLS, Family
from support.scripted_engine import HANG, ByteTokenizer, ScriptedEngine, Step, says

HERMES = """tools <tool_call> {% for message in messages %}{{ message.role }}: {{ message.content }}
{% for call in message.tool_calls %}{{ call.function.arguments.a }}{% endfor %}{% endfor %}"""
FIELDS = [
    {"type": "function", "function": {"name": tool.name, "description": "d", "parameters": dict(tool.parameters)}}
    for tool in TOOLS
]
CALL = '<tool_call>{"name": "clock", "arguments": {}}</tool_call>'
IDS = [f"{family.format}-{place}" for place, family in enumerate(FAMILIES)]


def service_of(steps: list[Step] | str, template: str = HERMES, **changes: Any) -> Service:
    return make_service(steps, chat_template=ChatTemplate(template), **changes)


def choice_of(steps: list[Step] | str, template: str = HERMES, **fields: Any) -> dict[str, Any]:
    response = chat(service_of(steps, template), tools=FIELDS, **fields)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def deltas_of(steps: list[Step] | str, template: str = HERMES, **fields: Any) -> list[dict[str, Any]]:
    data = chunks(chat(service_of(steps, template), tools=FIELDS, stream=True, **fields))
    return [each["choices"][0] for each in data]


def joined(deltas: list[dict[str, Any]]) -> dict[str, Any]:
    """A message from deltas, as clients add them up."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "calls": []}
    for delta in (each["delta"] for each in deltas):
        for name in ("content", "reasoning_content"):
            message[name] += delta.get(name) or ""
        for call in delta.get("tool_calls", []):
            if call["index"] == len(message["calls"]):
                message["calls"].append([call["function"]["name"], ""])
            message["calls"][call["index"]][1] += call["function"]["arguments"]
    return message


@pytest.mark.parametrize("family", FAMILIES, ids=IDS)
def test_whole_and_streamed_answers_say_the_same(family: Family) -> None:
    """[64]"""
    template = family.template + "{{ 'P' }}" + family.prefix
    choice = choice_of(family.answer, template)
    deltas = deltas_of(says(family.answer, 0.0), template)
    streamed = joined(deltas)
    calls = [[each["function"]["name"], each["function"]["arguments"]] for each in choice["message"]["tool_calls"]]
    assert streamed["calls"] == calls
    assert [(name, json.loads(arguments)) for name, arguments in calls] == list(family.calls)
    assert (choice["message"]["content"] or "", streamed["content"]) == (family.text, family.text)
    assert choice["message"].get("reasoning_content", "") == streamed["reasoning_content"] == family.reasoning
    assert choice["finish_reason"] == deltas[-1]["finish_reason"] == "tool_calls"


def test_index_counts_and_names_come_once() -> None:
    """[10, 11, 75]"""
    calls = [
        delta["delta"]["tool_calls"] for delta in deltas_of(says(CALL + CALL, 0.0)) if "tool_calls" in delta["delta"]
    ]
    assert all(len(each) == 1 for each in calls)
    first = [each[0] for each in calls if "id" in each[0]]
    assert [(each["index"], each["type"], each["function"]) for each in first] == [
        (0, "function", {"name": "clock", "arguments": ""}),
        (1, "function", {"name": "clock", "arguments": ""}),
    ]
    assert first[0]["id"] != first[1]["id"]
    rest = [each[0] for each in calls if "id" not in each[0]]
    assert all(each.keys() == {"index", "function"} and each["function"].keys() == {"arguments"} for each in rest)


@pytest.mark.parametrize(
    ("answer", "fields", "reason"),
    [
        (CALL, {}, "tool_calls"),
        ("no", {}, "stop"),
        (CALL, {"max_tokens": len(CALL) - 20}, "length"),
        (CALL, {"max_tokens": 5}, "length"),
        (CALL, {"stop": "}"}, "stop"),
        (CALL, {"tool_choice": "none"}, "stop"),
        (CALL.replace("clock", "other"), {}, "stop"),
    ],
)
def test_finish_reason(answer: str, fields: dict[str, Any], reason: str) -> None:
    """[16, 17, 18] tool_calls only if a call was told, and in both modes."""
    assert choice_of(answer, **fields)["finish_reason"] == reason
    assert deltas_of(says(answer, 0.0), **fields)[-1]["finish_reason"] == reason
    message = choice_of(answer, **fields)["message"]
    assert reason != "tool_calls" or message["tool_calls"]
    assert message.get("tool_calls") != []


def test_deltas_of_calls_have_no_content() -> None:
    """[19]"""
    deltas = [delta["delta"] for delta in deltas_of(says("Hi" + CALL, 0.0))]
    assert deltas[0] == {"role": "assistant", "content": ""}
    told = [list(delta) for delta in deltas[1:]]
    texts = told.count(["content"])
    assert texts in (1, 2)  # tokens that come at once may share a delta
    assert told == [*[["content"]] * texts, *[["tool_calls"]] * (len(told) - texts - 1), []]


def test_role_comes_first_for_every_choice() -> None:
    """[20]"""
    data = chunks(chat(service_of(says(CALL, 0.0)), tools=FIELDS, stream=True, n=2))
    assert [each["choices"][0]["delta"].get("role") for each in data[:2]] == ["assistant", "assistant"]
    assert all("role" not in each["choices"][0]["delta"] for each in data[2:])


def test_content_is_null_beside_calls_alone() -> None:
    assert choice_of(CALL)["message"]["content"] is None
    assert choice_of("Hi" + CALL)["message"]["content"] == "Hi"
    assert choice_of("")["message"]["content"] == ""


def test_one_call_ends_the_answer_where_calls_are_not_parallel() -> None:
    """In the engine too; and the count of tokens does not depend on when the engine noticed."""
    first = CALL.removesuffix("</tool_call>").removesuffix("}")
    for steps in ([*says(CALL + "\n" + CALL), HANG], [*says(CALL + CALL, 0.0), HANG]):
        engine = ScriptedEngine(lambda submit, steps=steps: steps)  # type: ignore[misc]
        response = chat(
            make_service(engine, chat_template=ChatTemplate(HERMES)), tools=FIELDS, parallel_tool_calls=False
        )
        body = response.json()
        assert len(body["choices"][0]["message"]["tool_calls"]) == 1
        assert body["choices"][0]["finish_reason"] == "tool_calls"
        assert body["usage"]["completion_tokens"] == len(first)
        assert engine.aborted == [(engine.submitted[0].request_id, "stop")]


def test_stop_strings_act_before_calls_are_read() -> None:
    """[1, 2]"""
    message = choice_of("Hi STOP" + CALL, stop="STOP")["message"]
    assert message["content"] == "Hi "
    assert "tool_calls" not in message


@pytest.mark.parametrize("stop", [">!", "</tool_call>!", "}}</tool_call>!"])
def test_what_was_held_back_to_the_end_is_read_like_the_rest(stop: str) -> None:
    """[3] It began like a stop string, and ends a call."""
    choice, deltas = choice_of(CALL, stop=stop), deltas_of(says(CALL, 0.0), stop=stop)
    assert choice["message"]["content"] is None
    assert [call["function"] for call in choice["message"]["tool_calls"]] == [{"name": "clock", "arguments": "{}"}]
    assert (joined(deltas)["content"], joined(deltas)["calls"]) == ("", [["clock", "{}"]])
    assert choice["finish_reason"] == deltas[-1]["finish_reason"] == "tool_calls"


def test_an_unfinished_call_is_told_at_the_end() -> None:
    """[4]"""
    assert choice_of("Hi <tool_call>{")["message"]["content"] == "Hi <tool_call>{"
    assert joined(deltas_of(says("Hi <tool_call>{", 0.0)))["content"] == "Hi <tool_call>{"


def test_characters_are_whole_in_arguments() -> None:
    """[5, 6]"""
    answer = '<tool_call>{"name": "get_weather", "arguments": {"city": "☕ü"}}</tool_call>'
    deltas = deltas_of(says(answer, 0.0))
    assert joined(deltas)["calls"] == [["get_weather", '{"city": "☕ü"}']]
    assert "\ufffd" not in str(deltas)
    broken = [*says('<tool_call>{"name": "get_weather", "arguments": {"city": "'), 0xF0, 0x9F]
    assert choice_of(broken)["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "\ufffd'


def test_each_token_has_its_logprobs_once() -> None:
    """[24] Also those of a call's syntax, which are no text."""
    answer = "Hi" + CALL
    whole = choice_of(answer, logprobs=True)["logprobs"]["content"]
    assert "".join(each["token"] for each in whole) == answer
    streamed = [each["logprobs"]["content"] for each in deltas_of(says(answer, 0.0), logprobs=True) if each["logprobs"]]
    assert [token for part in streamed for token in part] == whole


def test_choices_have_calls_of_their_own() -> None:
    """[30]"""
    answers = iter(["one", CALL, "three"])
    engine = ScriptedEngine(lambda submit: says(next(answers), 0.001))
    service = make_service(engine, chat_template=ChatTemplate(HERMES))
    choices = chat(service, tools=FIELDS, n=3).json()["choices"]
    assert [each["message"]["content"] for each in choices] == ["one", None, "three"]
    assert [each["finish_reason"] for each in choices] == ["stop", "tool_calls", "stop"]


def test_children_draw_differently_with_tools() -> None:
    """[31]"""
    service = service_of("Hi")
    chat(service, tools=FIELDS, n=2, seed=3)
    assert [submit.sampling.seed for submit in service.client.submitted] == [3, 4]


def test_messages_with_calls_come_back() -> None:
    """[32, 33] Null content is a text, arguments are an object for the template, no calls are none."""
    service = service_of("ok")
    call = {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": '{"a": 5}'}}
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
        {"role": "assistant", "content": "y", "tool_calls": []},
    ]
    assert chat(service, messages=messages, tools=FIELDS).status_code == 200
    prompt = ByteTokenizer().decode(service.client.submitted[0].prompt)
    assert prompt.split("\n")[:4] == ["tools <tool_call> user: x", "assistant: ", "5tool: noon", "assistant: y"]


def test_a_template_refuses_by_its_own_words() -> None:
    """[34]"""
    response = chat(service_of("ok", "tools {{ raise_exception('no tools, please') }}"), tools=FIELDS)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")
    assert "no tools, please" in response.json()["error"]["message"]


def test_tools_reach_the_template() -> None:
    service = service_of("ok", "{{ tools | tojson }}")
    chat(service, tools=FIELDS)
    chat(service, tools=FIELDS, tool_choice="none")
    prompts = [ByteTokenizer().decode(submit.prompt) for submit in service.client.submitted]
    assert json.loads(prompts[0]) == FIELDS
    assert prompts[1] == "null"


def test_a_template_that_shows_no_tools_is_an_event() -> None:
    service = service_of("ok", "{{ messages[0].content }}")
    for _ in range(2):
        assert chat(service, tools=FIELDS).status_code == 200
    assert service.events.counts() == {"tools_unseen": 1}


def test_what_is_no_call_is_an_event_once() -> None:
    service = service_of("<tool_call>?</tool_call>")
    for _ in range(2):
        assert chat(service, tools=FIELDS).json()["choices"][0]["message"]["content"] == "<tool_call>?</tool_call>"
    assert service.events.counts() == {"not_a_call": 1}


def test_allowed_tools_are_the_only_ones_called() -> None:
    chosen = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "get_weather"}}]}
    message = choice_of(CALL, tool_choice={"type": "allowed_tools", "allowed_tools": chosen})["message"]
    assert message["content"] == CALL


def test_mistral_templates_get_ids_of_nine_letters() -> None:
    template = """[TOOL_CALLS] tools {% for m in messages %}{{ m.tool_call_id }} {% for call in m.tool_calls %}
{{ call.id }}{% endfor %};{% endfor %}"""
    service = service_of("ok", template)
    call = {"id": "call_with-long_id", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    messages = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_with-long_id", "content": "x"},
    ]
    assert chat(service, messages=messages, tools=FIELDS).status_code == 200
    asked, answered = ByteTokenizer().decode(service.client.submitted[0].prompt).split(";")[:2]
    assert asked.split()[-1] == answered.split()[0]
    assert len(answered.split()[0]) == 9


def test_arguments_of_the_sample_are_hard() -> None:
    assert json.dumps(ARGUMENTS).count("\\") > 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": []}, "tools"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [FIELDS[0], FIELDS[0]]}, "tools"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
            "tools[0].function.parameters.type",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": 5}}}}]},
            "tools[0].function.parameters.properties.a",
        ),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": FIELDS, "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": FIELDS, "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tools": FIELDS, "tool_choice": {"type": "function"}}, "tool_choice"),
        (
            {"tools": FIELDS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
            "tool_choice",
        ),
        ({"function_call": {"name": "clock"}}, "function_call"),
    ],
)
def test_bad_tools_are_named(fields: dict[str, Any], param: str) -> None:
    response = chat(service_of("Hi"), **fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
