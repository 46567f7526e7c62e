"""What may be asked of an answer's form: compiled once, kept, and refused by name at the door."""

import json

import pytest
from isotherm.daemon.errors import InvalidRequestError
from isotherm.daemon.structure import Structure
from isotherm.daemon.structures import StructureLimits, Structures, json_for_lark
from support.structured import TOKENIZER, answer, by_chance, compiled

NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def refusal(source: object, kind: str = "json_schema", trigger: str | None = None, **limits: object) -> str:
    text = source if isinstance(source, str) else json.dumps(source)
    with pytest.raises(InvalidRequestError) as caught:
        Structures(TOKENIZER, StructureLimits(**limits)).compile(Structure(kind, text, trigger), "response_format")
    assert caught.value.param == "response_format"
    return str(caught.value)


@pytest.mark.parametrize(
    "keyword",
    [
        "not",
        "if",
        "contains",
        "uniqueItems",
        "propertyNames",
        "dependentRequired",
        "$dynamicRef",
        "nullable",
        "minLenght",
    ],
)
def test_an_unknown_keyword_is_refused_by_name_and_place(keyword: str) -> None:
    """[36] Not ignored."""
    problem = refusal({"type": "object", "properties": {"a": {"type": "string", keyword: {}}}})
    assert f"'{keyword}'" in problem and "#/properties/a" in problem


def test_options_of_the_library_cannot_be_smuggled_in() -> None:
    assert "'x-guidance'" in refusal({"type": "object", "x-guidance": {"lenient": True}})


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, "oneOf"),
        ({"type": "string", "format": "iri"}, "'iri'"),
        ({"$ref": "https://example.com/schema"}, "https://example.com/schema"),
        ({"$ref": "#/$defs/none"}, "points to nothing"),
        ({"$ref": "#/examples/0", "examples": [{"not": {}}]}, "does not point to a schema"),
        ({"type": "strin"}, "type"),
        ({"type": "string", "minLength": -1}, "#/minLength"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-ahead"),
        ({"type": "object", "minProperties": 3}, "minProperties"),
        ({"enum": []}, "enum"),
        ({"const": "a\x00b"}, "control character"),
        ({"properties": {"a\x01": {}}}, "control character"),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "'a'"),
        ({"type": "array", "items": 5}, "#/items"),
        ([], "object"),
        (False, "object"),
        ("{", "not valid JSON"),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_a_schema_that_cannot_be_kept_is_refused_with_its_fault(schema: object, words: str) -> None:
    assert words in refusal(schema)


def deep(levels: int) -> dict[str, object]:
    schema: dict[str, object] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def doubling(levels: int) -> dict[str, object]:
    """Each definition refers twice to the next one: 2 to the power of `levels` schemas if they were written out."""
    refs = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**refs, f"d{levels}": {"type": "string"}}}


def chain(links: int) -> dict[str, object]:
    return {**{f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(links)}, f"d{links}": {"type": "string"}}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"$ref": "#"}, "leads back"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "leads back"),
        ({"$ref": "#/$defs/d0", "$defs": chain(3000)}, "goes over more than"),
        (deep(60), "nested deeper"),
        (deep(900), "nested deeper"),
        ({"enum": [f"value {i}" for i in range(6000)]}, "values"),
        ({"properties": {f"p{i}": {} for i in range(500)}}, "500 properties"),
        ({"anyOf": [{"type": "string"}] * 6000}, "schemas"),
        ({"type": "string", "maxLength": 10**9}, "#/maxLength"),
        ({"type": "array", "minItems": 10**9}, "#/minItems"),
        ("[" * 100_000, "not valid JSON"),
        ({"description": "x" * 300_000}, "300"),
    ],
    ids=[
        "self",
        "circle",
        "chain",
        "deep",
        "very deep",
        "enum",
        "properties",
        "schemas",
        "length",
        "items",
        "json",
        "long",
    ],
)
def test_a_bomb_is_refused(schema: object, words: str) -> None:
    """[39, 41]"""
    assert words in refusal(schema)


def test_references_that_double_are_no_bomb() -> None:
    ids, ended = answer(compiled(json.dumps(doubling(40))), by_chance(1, 6))
    assert ended and TOKENIZER.text(ids).startswith('"')


@pytest.mark.parametrize(
    ("source", "kind", "words"),
    [
        ("(a", "regex", "unclosed group"),
        (r"(a)\1", "regex", "backreferences"),
        ("(" * 400 + "a" + ")" * 400, "regex", "response_format"),
        ("start: foo", "lark", '"foo"'),
        ("start: start", "lark", "no text can satisfy it"),
        ("start: " + "(" * 5000 + '"a"' + ")" * 5000, "lark", "nested"),
        ('start: "a" <|nothing|>', "lark", "<|nothing|>"),
        ("\ud800", "regex", "surrogate"),
    ],
    ids=["group", "backreference", "nested regex", "name", "loop", "nested grammar", "token", "surrogate"],
)
def test_a_bad_expression_or_grammar_is_refused_with_its_fault(source: str, kind: str, words: str) -> None:
    """[39, 40]"""
    assert words in refusal(source, kind)


def test_what_takes_too_long_is_given_up() -> None:
    """[41]"""
    names = [f"property {i}" for i in range(70)]
    schema = {"type": "object", "properties": {name: {"enum": names} for name in names}}
    assert "takes longer" in refusal(json.dumps(schema), compile_s=1e-9)


def test_a_trigger_has_a_length() -> None:
    assert "trigger" in refusal(NAME, trigger="")
    assert "trigger" in refusal(NAME, trigger="x" * 1000)


def test_equal_structures_are_compiled_once_until_others_push_them_out() -> None:
    structures = Structures(TOKENIZER, StructureLimits(kept=2))
    first = structures.compile(Structure("regex", "a"))
    assert structures.compile(Structure("regex", "a")) is first
    structures.compile(Structure("regex", "b"))
    structures.compile(Structure("regex", "c"))
    assert structures.compile(Structure("regex", "a")) is not first


def test_a_structure_that_broke_is_compiled_anew() -> None:
    structures = Structures(TOKENIZER)
    first = structures.compile(Structure("regex", "a"))
    first.broken = True
    assert structures.compile(Structure("regex", "a")) is not first


@pytest.mark.parametrize("schema", [{}, True, {"description": "anything"}, {"$defs": {"a": {"type": "string"}}}])
def test_a_schema_that_asks_for_nothing_means_an_object(schema: object) -> None:
    """[38]"""
    ids, _ = answer(compiled(json.dumps(schema)), by_chance(3, 8))
    assert isinstance(json.loads(TOKENIZER.text(ids)), dict)


def test_a_grammar_may_hold_a_checked_schema() -> None:
    grammar = f'start: "<call>" body "</call>"\nbody: %json {json_for_lark(json.dumps(NAME), "tools")}'
    text = TOKENIZER.text(answer(compiled(grammar, "lark"), by_chance(2, 8))[0])
    assert "name" in json.loads(text.removeprefix("<call>").removesuffix("</call>"))
    with pytest.raises(InvalidRequestError, match="'not'"):
        json_for_lark('{"not": {}}', "tools")


def test_branches_with_a_tag_exclude_each_other() -> None:
    """As pydantic writes a union that is told apart by a field."""

    def branch(kind: str, **more: object) -> dict[str, object]:
        return {"type": "object", "properties": {"kind": {"const": kind}, **more}, "required": ["kind"]}

    schema = {
        "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
        "discriminator": {"propertyName": "kind"},
        "$defs": {"a": branch("a", next={"$ref": "#"}), "b": branch("b")},
    }
    ids, ended = answer(compiled(json.dumps(schema)), by_chance(4, 8))
    assert ended and json.loads(TOKENIZER.text(ids))["kind"] in ("a", "b")
