"""Errors on the paths of each dialect, wherever they are raised."""

from typing import Any

import pytest
from isotherm.api.service import Limits, Service
from isotherm.daemon.config import key_digest
from isotherm.daemon.errors import EngineError
from support.api_service import MODEL, call, make_service
from support.scripted_engine import ScriptedEngine

ANTHROPIC = "/v1/messages"
OLLAMA = "/api/generate"
MESSAGES = {"model": MODEL, "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
PROMPT = {"model": MODEL, "prompt": "x", "stream": False}


def told(service: Service, path: str, **kwargs: Any) -> tuple[int, Any]:
    response = call(service, "POST", path, **kwargs)
    assert response.headers["content-length"] == str(len(response.content))
    return response.status_code, response.json()


def failing(error: Exception) -> Service:
    return make_service(ScriptedEngine(lambda submit: [error]))


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [(EngineError("down"), 503, "api_error"), (RuntimeError("secret"), 500, "api_error")],
    ids=["engine", "unforeseen"],
)
def test_failures(error: Exception, status: int, kind: str) -> None:
    code, body = told(failing(error), ANTHROPIC, json=MESSAGES)
    assert (code, body["type"], body["error"]["type"]) == (status, "error", kind)
    assert "secret" not in body["error"]["message"]
    code, body = told(failing(error), OLLAMA, json=PROMPT)
    assert (code, list(body)) == (status, ["error"])
    assert "secret" not in body["error"]


def test_a_body_that_is_too_large() -> None:
    service = make_service(limits=Limits(max_body=10))
    code, body = told(service, ANTHROPIC, json=MESSAGES)
    assert (code, body["error"]["type"]) == (413, "request_too_large")
    code, body = told(service, OLLAMA, json=PROMPT)
    assert (code, list(body)) == (413, ["error"])


def test_a_missing_key() -> None:
    """[70]"""
    service = make_service(api_keys=frozenset({key_digest("sesame")}))
    code, body = told(service, ANTHROPIC, json=MESSAGES)
    assert (code, body["error"]["type"]) == (401, "authentication_error")
    code, body = told(service, OLLAMA, json=PROMPT)
    assert (code, list(body)) == (401, ["error"])
    code, body = told(service, "/v1/responses", json={"input": "x"})
    assert (code, body["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize("headers", [{"x-api-key": "sesame", "authorization": "Bearer stale"}, {"x-api-key": "sesame"}])
def test_a_stale_key_beside_a_good_one_does_not_matter(headers: dict[str, str]) -> None:
    service = make_service(api_keys=frozenset({key_digest("sesame")}))
    assert told(service, ANTHROPIC, json=MESSAGES, headers=headers)[0] == 200


@pytest.mark.parametrize("headers", [{"x-api-key": ""}, {"authorization": "Basic sesame"}, {"authorization": "Bearer"}])
def test_what_is_no_key(headers: dict[str, str]) -> None:
    service = make_service(api_keys=frozenset({key_digest("sesame")}))
    assert told(service, ANTHROPIC, json=MESSAGES, headers=headers)[0] == 401


def test_paths_that_are_not_there() -> None:
    code, body = told(make_service(), "/api/pull", json={"model": MODEL})
    assert (code, list(body)) == (404, ["error"])
    code, body = told(make_service(), "/v1/messages/batches", json={})
    assert (code, body["error"]["type"]) == (404, "not_found_error")


def test_the_id_of_a_request_is_where_clients_look() -> None:
    response = call(make_service(), "POST", ANTHROPIC, json=MESSAGES, headers={"x-request-id": "r1"})
    assert response.headers["request-id"] == response.headers["x-request-id"] == "r1"
    assert "request-id" not in call(make_service(), "POST", OLLAMA, json=PROMPT).headers


def test_only_ollama_takes_json_without_its_content_type() -> None:
    body = b'{"model": "org/tiny-moe", "prompt": "x", "stream": false}'
    assert told(make_service(), OLLAMA, content=body)[0] == 200
    assert told(make_service(), ANTHROPIC, content=body)[0] == 400
