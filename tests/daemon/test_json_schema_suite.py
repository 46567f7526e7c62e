"""The schemas of the public JSON Schema test suite: what is accepted is kept, what is not is refused by name."""

import json
from collections.abc import Iterator
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from isotherm.daemon.errors import InvalidRequestError
from support.structured import TOKENIZER, answer, by_chance, compiled

CASES = Path(__file__).parents[1] / "data" / "json_schemas.jsonl"
SEEDS = range(4)
# Of the vocabulary; properties have any name.
KEYWORDS = {*jsonschema.Draft202012Validator.VALIDATORS, "$id", "$anchor", "$dynamicAnchor", "then", "else"} | {
    "minContains",
    "maxContains",
}
UNNAMED = ("must be a JSON object", "schema is false")  # the fault is a whole schema, not a keyword


@cache
def cases() -> dict[str, list[dict[str, Any]]]:
    """By the suite's file."""
    files: dict[str, list[dict[str, Any]]] = {}
    for line in CASES.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        files.setdefault(row["file"], []).append(row)
    return files


def keywords(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        for name, value in schema.items():
            if name in KEYWORDS:
                yield name
            yield from keywords(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from keywords(value)


def draw(source: str) -> list[str]:
    """The answers that came to an end by themselves."""
    constraint = compiled(source)
    answers = (answer(constraint, by_chance(seed, liked=1.5 * seed), seed=seed, max_tokens=150) for seed in SEEDS)
    return [TOKENIZER.text(ids) for ids, ended in answers if ended]


@pytest.mark.parametrize("file", sorted(cases()))
def test_what_is_accepted_is_kept_and_the_rest_refused_by_name(file: str) -> None:
    """[36]"""
    for case in cases()[file]:
        schema = case["schema"]
        try:
            texts = draw(json.dumps(schema))
        except InvalidRequestError as refusal:
            named = any(name in str(refusal) for name in keywords(schema))
            assert named or any(words in str(refusal) for words in UNNAMED), (case["description"], str(refusal))
            continue
        assert texts, f"{case['description']}: no answer came to an end"
        for text in texts:
            value = json.loads(text, parse_float=Decimal)
            jsonschema.Draft202012Validator(schema).validate(value)


def test_a_good_part_is_accepted() -> None:
    """So that refusing everything would not pass."""
    accepted = 0
    for case in (case for file in cases().values() for case in file):
        try:
            compiled(json.dumps(case["schema"]))
        except InvalidRequestError:
            continue
        accepted += 1
    assert accepted >= 150
