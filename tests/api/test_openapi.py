"""The OpenAPI document, and whether the server keeps what it says there."""

import random
from concurrent.futures import Future
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import booleans
from isotherm.api.openapi import document
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from support.api_service import app_of, make_service
from support.scripted_engine import EOS, ScriptedEngine

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = 25  # per operation and sort of data
PATHS: dict[str, Any] = document(app_of(make_service()))["paths"]
OPERATIONS = sorted(f"{method.upper()} {path}" for path, methods in PATHS.items() for method in methods)


def has_body(operation: str) -> bool:
    method, path = operation.split()
    return "requestBody" in PATHS[path][method.lower()]


def may_stream(operation: str) -> bool:
    method, path = operation.split()
    kinds = PATHS[path][method.lower()]["responses"]["200"].get("content", {})
    return not kinds.keys().isdisjoint({"text/event-stream", "application/x-ndjson"})


CASES = [(name, GenerationMode.POSITIVE) for name in OPERATIONS]
CASES += [(name, GenerationMode.NEGATIVE) for name in OPERATIONS if has_body(name)]


def babble(submit: Any) -> list[int]:
    """Tokens that depend on the prompt alone."""
    return random.Random(sum(submit.prompt)).choices(range(EOS), k=6)


class Obedient(ScriptedEngine):
    """Says to each command that it is done."""

    def ask(self, command: Any) -> "Future[Any]":
        answer: Future[Any] = Future()
        answer.set_result({"done": True})
        return answer


APP = app_of(make_service(Obedient(babble)))
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", APP)


@pytest.mark.parametrize(("name", "mode"), CASES, ids=lambda part: getattr(part, "value", part))
def test_the_server_keeps_its_document(name: str, mode: GenerationMode) -> None:
    method, path = name.split()
    operation = SCHEMA[path][method]

    @seed(5)
    @settings(
        max_examples=EXAMPLES,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), stream=booleans())
    def keeps(case: Any, stream: bool) -> None:
        if mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
            case.body.pop("model", None)  # or it would hardly ever be the one that is served
            if may_stream(name):
                case.body["stream"] = stream  # or it would hardly ever be true
        case.call_and_validate(checks=CHECKS)

    keeps()
