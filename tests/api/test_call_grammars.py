"""The grammars of enforced calls, held against the library that keeps them and against our own readers."""

import json
import random
from typing import Any

import jsonschema
import pytest
from isotherm.api.tools.formats import ANY, FORMATS, Format
from isotherm.api.tools.grammar import calls_rule
from isotherm.api.tools.lark import Lark, from_regex
from isotherm.api.tools.shapes import Shape, shape_of
from isotherm.api.tools.typed_value import is_text
from isotherm.daemon.structure import Structure
from isotherm.daemon.structures import Structures
from llguidance import LLMatcher
from support.dialogues import ARGUMENTS, TOOLS, calls_of, read, speech, text_of
from support.scripted_engine import ByteTokenizer

ALL = (*FORMATS, ANY)
CASES = [(form, template) for form in ALL for template in ("tools", "tools [ARGS] ```json")]
IDS = [f"{form.name}-{'old' if template == 'tools' else 'new'}" for form, template in CASES]
SCHEMAS = {tool.name: dict(tool.parameters) for tool in TOOLS}
PREFIX = {"harmony": "<|start|>assistant"}


def written(shape: Shape, name: str, arguments: dict[str, Any], number: int = 0) -> str:
    """A call as the shape says."""
    head = f"{shape.opening}{name}" + (f":{number}" if shape.numbered else "") + shape.middle
    form = shape.parameters
    if form is None:
        return head + json.dumps(arguments, ensure_ascii=False) + shape.closing
    parts = []
    for key, value in arguments.items():
        text = is_text(SCHEMAS.get(name, {}).get("properties", {}).get(key))
        opening = form.opening.format(key=key, text="true" if text else "false")
        bare = text and form.bare
        parts.append(opening + (value if bare else json.dumps(value, ensure_ascii=False)) + form.closing)
    return head + form.between.join(parts) + shape.closing


def matcher(form: Format, template: str, *, single: bool = False, control: dict[str, int] | None = None) -> LLMatcher:
    lark = Lark(control or {})
    source = lark.source(calls_rule(lark, shape_of(form, template), SCHEMAS, single=single))
    tokenizer = Structures(ByteTokenizer())._table.matcher_tokenizer
    made = LLMatcher(tokenizer, source)
    assert not made.is_error(), made.get_error()
    return made


def accepts(made: LLMatcher, text: str) -> bool:
    ids = list(text.encode())
    return made.validate_tokens(ids) == len(ids) and made.deep_copy().consume_tokens(ids) and ended(made, ids)


def ended(made: LLMatcher, ids: list[int]) -> bool:
    copy = made.deep_copy()
    copy.consume_tokens(ids)
    return bool(copy.is_accepting())


@pytest.mark.parametrize(("form", "template"), CASES, ids=IDS)
def test_what_a_grammar_accepts_is_read_as_calls(form: Format, template: str) -> None:
    shape = shape_of(form, template)
    calls = [("get_weather", ARGUMENTS), ("clock", {})][: 1 if shape.single else 2]
    text = (
        shape.begin
        + shape.between.join(written(shape, *call, number) for number, call in enumerate(calls))  # type: ignore[misc]
        + shape.end
    )
    assert accepts(matcher(form, template), text)
    told = read(speech(" ".join((*form.clues, template))), [text], PREFIX.get(form.name, ""))
    assert calls_of(told) == calls
    assert text_of(told) == ""


@pytest.mark.parametrize(("form", "template"), CASES, ids=IDS)
def test_grammars_refuse_what_is_no_proper_call(form: Format, template: str) -> None:
    shape = shape_of(form, template)
    made = matcher(form, template)

    def whole(name: str, arguments: dict[str, Any]) -> str:
        return shape.begin + written(shape, name, arguments) + shape.end

    assert accepts(made, whole("get_weather", {"city": "x"}))
    assert not accepts(made, whole("other", {"city": "x"}))
    assert not accepts(made, whole("get_weather", {"days": 3}))
    assert not accepts(made, whole("get_weather", {"city": "x", "days": "many"}))
    assert not accepts(made, "Hello")


@pytest.mark.parametrize(("form", "template"), CASES, ids=IDS)
def test_a_single_call_is_the_last(form: Format, template: str) -> None:
    shape = shape_of(form, template)
    call = written(shape, "clock", {})
    one = shape.begin + call + shape.end
    two = shape.begin + call + shape.between + call + shape.end
    made = matcher(form, template, single=True)
    assert accepts(made, one)
    assert not accepts(made, two)


def test_sampled_json_calls_obey_their_schemas() -> None:
    """Random walks, which close strings more often than not."""
    rng = random.Random(1)
    for form in (form for form in ALL if shape_of(form, "").parameters is None):
        made = matcher(form, "", single=True)
        text: list[int] = []
        while not (made.is_accepting() and (made.is_stopped() or rng.random() < 0.5)) and len(text) < 3000:
            mask = made.compute_bitmask()
            possible = [i for i in range(256) if mask[i // 8] >> (i % 8) & 1]
            allowed = [i for i in possible if i == 10 or 32 <= i < 127] or possible
            if not allowed:
                break
            closing = [i for i in allowed if chr(i) in '"}]']
            token = rng.choice(closing if closing and rng.random() < 0.7 else allowed)
            made.consume_token(token)
            text.append(token)
        told = read(speech(" ".join(("tools", *form.clues))), [bytes(text).decode()], PREFIX.get(form.name, ""))
        ((name, arguments),) = calls_of(told)
        jsonschema.validate(arguments, SCHEMAS[name])


def test_control_tokens_are_tokens_in_grammars() -> None:
    made = matcher(FORMATS[1], "", control={"<|tool_call_begin|>": 256, "<|tool_calls_section_begin|>": 257})
    assert made.validate_tokens([257, 256, *b"functions.clock:0"]) == 19
    assert made.validate_tokens(list(b"<|tool")) == 0


def test_optional_parameters_of_python_calls_may_be_left_out() -> None:
    schema = {
        "type": "object",
        "properties": {name: {"type": "integer"} for name in "abcd"},
        "required": ["c"],
    }
    form = next(form for form in FORMATS if form.name == "pythonic")
    lark = Lark({})
    source = lark.source(calls_rule(lark, shape_of(form, ""), {"f": schema}, single=True))
    made = LLMatcher(Structures(ByteTokenizer())._table.matcher_tokenizer, source)
    good = ["[f(c=1)]", "[f(a=1, c=2)]", "[f(b=1, c=2, d=3)]", "[f(a=1, b=1, c=2, d=3)]"]
    bad = ["[f()]", "[f(a=1)]", "[f(c=1, a=2)]", "[f(, c=1)]", "[f(c=1, )]", "[f(a=1 c=2)]"]
    assert [accepts(made, text) for text in good + bad] == [True] * len(good) + [False] * len(bad)


def test_a_parameter_of_given_texts_is_one_of_these() -> None:
    schema = {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"]}
    form = next(form for form in FORMATS if form.name == "glm")
    lark = Lark({})
    source = lark.source(calls_rule(lark, shape_of(form, ""), {"f": schema}, single=True))
    made = LLMatcher(Structures(ByteTokenizer())._table.matcher_tokenizer, source)
    text = "<tool_call>f\n<arg_key>unit</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>"
    assert [accepts(made, text.format(unit)) for unit in "CFK"] == [True, True, False]


@pytest.mark.parametrize("source", [r"a/b", r"a\/b", "a\nb", r"[/]\d+", r"\\/"])
def test_regular_expressions_may_hold_slashes_and_lines(source: str) -> None:
    grammar = f"start: r\nr: {from_regex(source)}"
    Structures(ByteTokenizer()).compile(Structure("lark", grammar))
