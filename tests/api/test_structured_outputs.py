"""Answers of a given form over HTTP: all names of the fields, conflicts, and what a real engine makes of them."""

import json
from typing import Any

import pytest
from isotherm.api.service import Service
from isotherm.daemon.structure import Structure
from isotherm.daemon.structures import Structures
from support.api_service import chat, complete, make_service
from support.engine_runs import make_engine, running
from support.fake_runner import FakeRunner
from support.scripted_engine import VOCAB_SIZE, ByteTokenizer, ScriptedEngine, says

SCHEMA = {
    "type": "object",
    "properties": {"digits": {"type": "string", "pattern": "^[0-9]{1,9}$"}, "kind": {"enum": ["a", "b"]}},
    "required": ["digits", "kind"],
    "additionalProperties": False,
}
GBNF = 'root ::= "yes" | "no"'


def named(schema: object = SCHEMA, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **more}}


def asked(fields: dict[str, Any], ask: Any = chat) -> Structure | None:
    """The structure that reached the engine."""
    engine = ScriptedEngine(lambda submit: says("{}"))
    response = ask(make_service(engine), **fields)
    assert response.status_code == 200, response.text
    (submit,) = engine.submitted
    assert (submit.constraint is None) == (submit.sampling.structure is None)
    return submit.sampling.structure


@pytest.mark.parametrize("ask", [chat, complete])
@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": named()},
        {"response_format": named(strict=True)},
        {"response_format": named(strict=False, description="an answer")},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None, "disable_any_whitespace": True}},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"json_schema": SCHEMA, "response_format": {"type": "text"}},
    ],
)
def test_a_schema_reaches_the_engine_by_any_name(fields: dict[str, Any], ask: Any) -> None:
    structure = asked(fields, ask)
    assert structure is not None and structure.kind == "json_schema"
    assert json.loads(structure.source) == SCHEMA


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"response_format": {"type": "json_object"}}, Structure("json_schema", '{"type": "object"}')),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            Structure("json_schema", '{"type": "object"}'),
        ),
        ({"structured_outputs": {"json_object": True}}, Structure("json_schema", '{"type": "object"}')),
        ({"structured_outputs": {"regex": "a+"}}, Structure("regex", "a+")),
        ({"guided_regex": "a+"}, Structure("regex", "a+")),
        ({"regex": "a+"}, Structure("regex", "a+")),
        ({"guided_choice": ["yes", "no"]}, Structure("regex", "yes|no")),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, Structure("regex", "yes|no")),
        ({"guided_grammar": 'start: "a"+'}, Structure("lark", 'start: "a"+')),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": None, "guided_json": None, "guided_choice": [], "structured_outputs": {}}, None),
    ],
)
def test_other_forms_reach_the_engine(fields: dict[str, Any], expected: Structure | None) -> None:
    assert asked(fields) == expected


@pytest.mark.parametrize("name", ["grammar", "ebnf", "guided_grammar"])
def test_a_grammar_may_be_gbnf(name: str) -> None:
    structure = asked({name: GBNF})
    assert structure is not None and '"yes"' in structure.source and "::=" not in structure.source


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}},
            "response_format.json_schema.name",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a" * 65}}},
            "response_format.json_schema.name",
        ),
        ({"response_format": named(strict="yes")}, "response_format.json_schema.strict"),
        ({"response_format": named([])}, "response_format.json_schema.schema"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"guided_choice": [""]}, "guided_choice"),
        ({"guided_regex": 5}, "guided_regex"),
        ({"guided_grammar": "root ::= ("}, "guided_grammar"),
        ({"guided_whitespace_pattern": " *"}, "guided_whitespace_pattern"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    response = chat(make_service(), **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_two_forms_are_refused_by_both_names() -> None:
    error = chat(make_service(), response_format=named(), guided_regex="a").json()["error"]
    assert "response_format" in error["message"] and "guided_regex" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_unsupported_schema_is_a_400_that_names_the_keyword(stream: bool) -> None:
    """[36, 40]"""
    response = chat(make_service(), response_format=named({"type": "array", "uniqueItems": True}), stream=stream)
    error = response.json()["error"]
    assert response.status_code == 400 and response.headers["x-should-retry"] == "false"
    assert error["param"] == "response_format" and "'uniqueItems'" in error["message"]


def real_service() -> tuple[Service, Any]:
    runner = FakeRunner(vocab_size=VOCAB_SIZE, num_blocks=400, max_context=400, max_step_tokens=64)
    engine = make_engine(runner)
    return make_service(engine.client, structures=Structures(ByteTokenizer())), engine


@pytest.mark.parametrize(
    ("fields", "valid"),
    [
        ({"response_format": named()}, lambda text: json.loads(text)["kind"] in "ab"),
        (
            {"guided_choice": ["a/b (c)", "x\ny", 'say "no"', "é|ü", "50 %"]},
            lambda text: text in {"a/b (c)", "x\ny", 'say "no"', "é|ü", "50 %"},
        ),
        ({"grammar": GBNF}, lambda text: text in ("yes", "no")),
        ({"guided_regex": "^[a-c]{3}$"}, lambda text: len(text) == 3 and set(text) <= set("abc")),
    ],
    ids=["schema", "choice", "grammar", "regex"],
)
def test_every_answer_of_a_real_engine_has_its_form(fields: dict[str, Any], valid: Any) -> None:
    service, engine = real_service()
    with running(engine):
        for seed in range(5):
            response = chat(service, seed=seed, **fields)
            (choice,) = response.json()["choices"]
            assert choice["finish_reason"] == "stop"
            assert valid(choice["message"]["content"]), choice
            logprobs = chat(service, seed=seed, logprobs=True, **fields).json()["choices"][0]
            assert logprobs["message"] == choice["message"]
