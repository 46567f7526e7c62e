"""Each family's way to call and to think, cut anywhere. Numbers in brackets: a known bug of other servers."""

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isotherm.api.chat.events import CallArguments, CallBegan
from isotherm.api.chat.wish import Tool
from isotherm.api.tools.formats import FORMATS
from isotherm.daemon.events import EventLog
from support.dialogues import (
    CITY,
    FAMILIES,
    TOOLS,
    Family,
    calls_of,
    raw_calls,
    read,
    reasoning_of,
    speech,
    text_of,
    wish,
)

IDS = [f"{family.format}-{place}" for place, family in enumerate(FAMILIES)]


def split(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in pairwise(places)]


def without_ids(events: list[object]) -> list[object]:
    return [CallBegan(e.index, "", e.name) if isinstance(e, CallBegan) else e for e in events]


def test_every_format_is_tested() -> None:
    assert {family.format for family in FAMILIES} == {each.name for each in FORMATS} | {"json"}


@pytest.mark.parametrize("family", FAMILIES, ids=IDS)
def test_calls_of_a_family_in_one_piece(family: Family) -> None:
    """[13]"""
    events = EventLog()
    spoken = speech(family.template, events)
    assert spoken.format.name == family.format
    told = read(spoken, [family.answer], family.prefix)
    assert calls_of(told) == list(family.calls)
    assert (text_of(told), reasoning_of(told)) == (family.text, family.reasoning)
    assert events.counts() == {}


@pytest.mark.parametrize("family", FAMILIES, ids=IDS)
def test_a_character_at_a_time(family: Family) -> None:
    """[12]"""
    spoken = speech(family.template)
    whole = read(spoken, [family.answer], family.prefix)
    assert without_ids(read(spoken, list(family.answer), family.prefix)) == without_ids(whole)


@pytest.mark.parametrize("family", FAMILIES, ids=IDS)
@settings(max_examples=15)
@given(cuts=st.lists(st.integers(0, 2000), max_size=12), end=st.integers(0, 2000))
def test_random_cuts_of_whole_and_broken_answers(family: Family, cuts: list[int], end: int) -> None:
    """[14] Also of answers that end in the middle, and of what follows an end too early."""
    spoken = speech(family.template)
    for text in (family.answer, family.answer[:end], family.answer[:end] + " and so on"):
        whole = read(spoken, [text], family.prefix)
        assert without_ids(read(spoken, split(text, cuts), family.prefix)) == without_ids(whole)


@pytest.mark.parametrize("family", FAMILIES, ids=IDS)
@settings(max_examples=25)
@given(data=st.data())
def test_shuffled_syntax_raises_nothing(family: Family, data: st.DataObject) -> None:
    """[13] And is read the same however it is cut."""
    words = re.findall(r"<[^<>]*>|\[[A-Z_]+\]|\w+|\s+|.", family.answer)
    text = "".join(data.draw(st.lists(st.sampled_from([*words, "NaN", "'", "[", '"\\']), max_size=60)))
    spoken = speech(family.template)
    whole = read(spoken, [text], family.prefix)
    cuts = data.draw(st.lists(st.integers(0, 2000), max_size=10))
    assert without_ids(read(spoken, split(text, cuts), family.prefix)) == without_ids(whole)


@pytest.mark.parametrize("family", FAMILIES, ids=IDS)
def test_arguments_in_json_are_the_models_own_text(family: Family) -> None:
    """[15] Never written anew: what was told is a beginning of what the model wrote."""
    spoken = speech(family.template)
    if family.format in ("pythonic", "json", "qwen3_coder", "glm", "minimax", "deepseek_v3.2"):
        return
    (_, arguments), *_ = raw_calls(read(spoken, [family.answer], family.prefix))
    assert arguments in family.answer
    reader = spoken.reading(wish(), family.prefix)._reader
    told = ""
    for char in family.answer:
        told += "".join(e.json_text for e in reader.push(char) if isinstance(e, CallArguments) and e.index == 0)
        assert arguments.startswith(told)
    assert told == arguments


@pytest.mark.parametrize("family", FAMILIES, ids=IDS)
def test_arguments_come_before_the_call_is_complete(family: Family) -> None:
    if family.format in ("pythonic", "json"):
        return
    middle = family.answer.index("rich")
    assert "Z" in raw_calls(read(speech(family.template), [family.answer[:middle]], family.prefix))[0][1]


@pytest.mark.parametrize("family", FAMILIES, ids=IDS)
def test_unknown_tools_are_text_and_an_event(family: Family) -> None:
    """No text is lost."""
    events = EventLog()
    spoken = speech(family.template, events)
    asked = wish(tools=(TOOLS[1],))
    told = read(spoken, [family.answer], family.prefix, asked)
    assert "get_weather" in text_of(told)
    assert "Zürich" in text_of(told)
    assert all(name == "clock" for name, _ in raw_calls(told))
    assert sum(events.counts().values()) == 1


@pytest.mark.parametrize("family", FAMILIES, ids=IDS)
def test_without_tools_nothing_is_a_call(family: Family) -> None:
    told = read(speech(family.template), [family.answer], family.prefix, wish(tools=()))
    assert raw_calls(told) == []
    assert "get_weather" in text_of(told)


@pytest.mark.parametrize("family", FAMILIES, ids=IDS)
def test_no_text_is_lost(family: Family) -> None:
    """[3] A foreign word anywhere in an answer is told, be it as text, reasoning or arguments."""
    spoken = speech(family.template)
    for place in range(len(family.answer) + 1):
        broken = family.answer[:place] + "wörd" + family.answer[place:]
        if re.search(r'("(id|type)": "?|CALL_ID])\w*wörd', broken):  # members that say nothing
            continue
        events = read(spoken, [broken], family.prefix)
        told = "".join(getattr(event, "text", "") + getattr(event, "json_text", "") for event in events)
        assert "wörd" in told, broken


@pytest.mark.parametrize("family", FAMILIES, ids=IDS)
def test_plain_answers_are_left_alone(family: Family) -> None:
    answer = " Hello { world } < 3 [x] \n"
    if family.format == "harmony":
        answer, expected = f"<|channel|>final<|message|>{answer}", answer
        assert text_of(read(speech(family.template), list(answer), "<|start|>assistant")) == expected
    else:
        assert text_of(read(speech(family.template), list(answer))) == answer


def test_ids_are_unique_and_in_the_familys_form() -> None:
    ids = {}
    for family in FAMILIES:
        told = read(speech(family.template), [family.answer], family.prefix)
        ids[family.format] = [event.call_id for event in told if isinstance(event, CallBegan)]
        assert len(set(ids[family.format])) == 2
    assert all(len(call_id) == 9 and call_id.isalnum() for call_id in ids["mistral"])
    assert ids["kimi_k2"] == ["functions.get_weather:0", "functions.clock:1"]
    assert all(call_id.startswith("call_") for call_id in ids["hermes"])


def test_text_of_a_city_is_hard() -> None:
    """The sample holds what tags, quotes and brackets must not be confused by."""
    assert {'"', "\\", "{", "<", "\n", "☕"} <= set(CITY)


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("<|im_system|>tool_declare<|im_middle|>", "kimi_k2"),
        ("<seed:tool_call><function=x><parameter=y>", "qwen3_coder"),
        ("<tool_call>{function-name}\n<arg_key>", "glm"),
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "deepseek"),
        ('<|start_header_id|> {"name": ..., "parameters": ...}', "llama3_json"),
        ("{{ messages }}", "json"),
    ],
)
def test_a_template_tells_its_format(template: str, form: str) -> None:
    assert speech(template).format.name == form


def test_a_mark_around_calls_is_no_text() -> None:
    answer = "<seed:tool_call>\n<function=clock>\n</function>\n</seed:tool_call>"
    told = read(speech("<function= <parameter="), [answer])
    assert (calls_of(told), text_of(told)) == ([("clock", {})], "")


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "integer"}, "3", 3),
        ({"type": "integer"}, "three", "three"),
        ({"type": "boolean"}, "True", True),
        ({"type": "number"}, "NaN", "NaN"),
        ({}, "None", None),
        ({}, '{"a": 1}', {"a": 1}),
        ({}, "plain", "plain"),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "3", "3"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "3", 3),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "3.5", "3.5"),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"type": "string"}, "true", "true"),
        ({"type": "array"}, '["a\nb"]', ["a\nb"]),
    ],
)
def test_bare_parameters_have_the_types_of_the_schema(schema: dict[str, object], text: str, value: object) -> None:
    tool = Tool("f", "", {"type": "object", "properties": {"p": schema}})
    answer = f"<tool_call>f\n<arg_key>p</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>"
    told = read(speech("<tool_call> <arg_key>"), list(answer), "", wish(tools=(tool,)))
    assert calls_of(told) == [("f", {"p": value})]


@pytest.mark.parametrize("text", ["[f(a='\\d')]", "[f(a={1: 2})]", "[f(a=true, b=null)]"])
def test_python_calls_may_hold_odd_values(text: str) -> None:
    told = read(speech("[func_name1("), list(text), "", wish(tools=(Tool("f"),)))
    assert [name for name, _ in calls_of(told)] == ["f"]


@pytest.mark.parametrize(
    "text", ["[f(1)]", "[f(a=b)]", "[f(a=1", "[f(a={1})]", "[f(**x)]", "[f(a=" + "(" * 500, "[]", "[1]"]
)
def test_what_is_no_python_call_is_text(text: str) -> None:
    told = read(speech("[func_name1("), list(text), "", wish(tools=(Tool("f"),)))
    assert (raw_calls(told), text_of(told)) == ([], text)
