"""Routes, errors, headers, keys and limits. Numbers in brackets: a known bug of other servers that is tested for."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import httpx
import pytest
from fastapi.exceptions import RequestValidationError
from isotherm.api.errors import error_response, handle_error
from isotherm.api.middleware import BodyLimit
from isotherm.api.service import Limits, Service
from isotherm.daemon.config import key_digest
from isotherm.daemon.errors import EngineError, OverloadedError
from isotherm.daemon.status import EngineStats
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send
from support.api_service import CHAT, COMPLETIONS, MODEL, app_of, call, chat, complete, make_service
from support.scripted_engine import ScriptedEngine

MESSAGES = [{"role": "user", "content": "x"}]


def test_models_lists_the_served_one() -> None:
    body = call(make_service(), "GET", "/v1/models").json()
    assert body["object"] == "list"
    assert body["data"] == [
        {
            "id": MODEL,
            "object": "model",
            "created": 1_700_000_000,
            "owned_by": "isotherm",
            "max_model_len": 1000,
            "tool_format": "json",
            "reasoning_format": None,
        }
    ]


def test_model_is_found_by_an_id_with_a_slash() -> None:
    assert call(make_service(), "GET", f"/v1/models/{MODEL}").json()["id"] == MODEL


@pytest.mark.parametrize("path", ["/v1/models/other", "/v1/models/"])
def test_unknown_model_is_not_found(path: str) -> None:
    response = call(make_service(), "GET", path)
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


def test_unknown_model_is_refused_by_both_endpoints() -> None:
    for response in (chat(make_service(), model="gpt"), complete(make_service(), model="gpt")):
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
        assert MODEL in error["message"]


def test_health_is_ok_when_ready() -> None:
    response = call(make_service(), "GET", "/health")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_health_gives_the_reason_when_not_ready() -> None:
    engine = ScriptedEngine(lambda submit: [], state=EngineStats(state="draining", reason="shutting down"))
    response = call(make_service(engine), "GET", "/health")
    assert (response.status_code, response.json()["reason"]) == (503, "shutting down")


def test_health_can_be_asked_without_a_body() -> None:
    assert call(make_service(), "HEAD", "/health").status_code == 200


def test_every_path_that_the_root_lists_is_there() -> None:
    service = make_service()
    paths = call(service, "GET", "/").json()["paths"]
    answers = {path: call(service, *path.split()) for path in paths}
    assert len(paths) > 9
    missing = [path for path, answer in answers.items() if answer.status_code == 405 or "is nothing at" in answer.text]
    assert missing == []


def test_an_unknown_path_is_told_where_the_known_ones_are() -> None:
    message = call(make_service(), "POST", "/chat/completions").json()["error"]["message"]
    assert message == "there is nothing at /chat/completions; GET / lists the paths, most begin with /v1"


@pytest.mark.parametrize(("body", "words"), [([], "body: "), ({"messages": [1]}, "messages[0]: ")])
def test_what_is_no_object_is_told_in_words_of_json(body: object, words: str) -> None:
    message = call(make_service(), "POST", CHAT, json=body).json()["error"]["message"]
    assert message == f"{words}Input should be a JSON object"


def test_a_field_of_several_kinds_is_named_as_the_client_did() -> None:
    error = chat(make_service(), stop=5).json()["error"]
    assert (error["message"], error["param"]) == ("stop: Input should be a valid string", "stop")


def test_metrics_are_not_empty() -> None:
    """[56]"""
    response = call(make_service(), "GET", "/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert response.text == "isotherm_up 1.0\n"


def test_status_is_what_the_service_says() -> None:
    assert call(make_service(), "GET", "/admin/status").json() == {"state": "ready"}


def test_version_is_told() -> None:
    assert set(call(make_service(), "GET", "/version").json()) == {"version"}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nowhere", 404), ("GET", CHAT, 405), ("POST", "/v1/models", 405), ("GET", "/docs", 404)],
)
def test_errors_of_routing_are_nested_too(method: str, path: str, status: int) -> None:
    response = call(make_service(), method, path)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("content", [b"", b"{", b'{"messages": NaN}', b'{"messages":"\\ud800"}', b"[1]", b"\xff"])
def test_malformed_body_is_400(content: bytes) -> None:
    response = call(make_service(), "POST", CHAT, content=content, headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_wrong_content_type_is_400(kind: str) -> None:
    response = call(make_service(), "POST", CHAT, content=b"{}", headers={"content-type": kind})
    assert response.status_code == 400
    assert "application/json" in response.json()["error"]["message"]


def test_content_type_may_have_parameters() -> None:
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    content = b'{"messages":[{"role":"user","content":"x"}]}'
    assert call(make_service(), "POST", CHAT, content=content, headers=headers).status_code == 200


def small_bodies() -> Service:
    return make_service(limits=Limits(max_body=100))


def test_declared_size_over_the_limit_is_413() -> None:
    response = chat(small_bodies(), "x" * 100)
    assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")


def test_undeclared_size_over_the_limit_is_413() -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 10

    headers = {"content-type": "application/json"}
    assert call(small_bodies(), "POST", CHAT, content=body(), headers=headers).status_code == 413


def test_a_body_that_does_not_come_in_time_is_408() -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(30)

    service = make_service(limits=Limits(body_timeout=0.05))
    response = call(service, "POST", CHAT, content=body(), headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["error"]["code"]) == (408, "request_timeout")
    assert (response.headers["connection"], response.headers["x-should-retry"]) == ("close", "true")


def test_the_bodies_of_open_requests_share_a_bound() -> None:
    """What a request holds is given back when it ends, also when it is refused."""
    scope = {"type": "http", "headers": []}
    part = {"type": "http.request", "body": b"x" * 60, "more_body": False}

    async def receive() -> Message:
        return part

    async def send(message: Message) -> None: ...

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await scope["then"]()

    limit = BodyLimit(app, Limits(max_bodies=100))

    async def nothing() -> None: ...

    async def a_second_one() -> None:
        with pytest.raises(OverloadedError):
            await limit({**scope, "then": nothing}, receive, send)

    async def run() -> None:
        for _ in range(2):
            await limit({**scope, "then": a_second_one}, receive, send)
        await limit({**scope, "then": nothing}, receive, send)

    asyncio.run(run())


def test_overload_tells_when_to_come_back() -> None:
    """[53]"""
    engine = ScriptedEngine(lambda submit: [], refuse=OverloadedError("full", 2.5))
    response = chat(make_service(engine))
    assert (response.status_code, response.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert (response.headers["retry-after"], response.headers["x-should-retry"]) == ("3", "true")


def test_overload_is_found_before_the_prompt_is_encoded() -> None:
    """[53]"""
    engine = ScriptedEngine(lambda submit: [], refuse=OverloadedError("full", 2.5))
    assert chat(make_service(engine, tokenizer=None)).status_code == 429


@pytest.mark.parametrize(("part", "read"), [(0, 0), (5, 10)], ids=["before the body", "during the body"])
def test_a_queue_that_is_full_by_then_is_found_before_more_work_goes_into_a_request(part: int, read: int) -> None:
    """[53] Before a body is read, and, where it was long in coming, once more before its prompt is encoded."""
    engine = ScriptedEngine(lambda submit: [])
    parts: list[int] = []

    async def body() -> AsyncIterator[bytes]:
        for number in range(10):
            parts.append(number)
            if number == part:
                engine.refuse = OverloadedError("full", 2.5)
            yield b'{"prompt":"x"}' if number == 9 else b" "

    engine.refuse = None if part else OverloadedError("full", 2.5)
    service = make_service(engine, tokenizer=None)
    response = call(service, "POST", COMPLETIONS, content=body(), headers={"content-type": "application/json"})
    assert (response.status_code, len(parts)) == (429, read)


def test_engine_failure_is_503() -> None:
    response = chat(make_service([EngineError("the step failed")]))
    assert (response.status_code, response.headers["x-should-retry"]) == (503, "true")
    assert int(response.headers["retry-after"]) >= 1


def test_unforeseen_failure_is_500_without_its_text() -> None:
    response = chat(make_service([ZeroDivisionError("secret")]))
    assert (response.status_code, response.headers["x-should-retry"]) == (500, "false")
    assert response.json()["error"]["code"] == "internal_error"
    assert "secret" not in response.text
    assert "x-request-id" in response.headers


def test_errors_that_repeat_are_not_retried() -> None:
    assert chat(make_service(), n=0).headers["x-should-retry"] == "false"


def test_error_headers_of_routing_are_kept() -> None:
    assert call(make_service(), "GET", CHAT).headers["allow"] == "POST"


@pytest.mark.parametrize("given", ["abc-123", "trace:1.2_3"])
def test_a_sane_request_id_comes_back(given: str) -> None:
    assert call(make_service(), "GET", "/health", headers={"x-request-id": given}).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "<script>"])
def test_any_other_request_id_is_replaced(given: str) -> None:
    got = call(make_service(), "GET", "/nowhere", headers={"x-request-id": given}).headers["x-request-id"]
    assert got != given
    assert len(got) == 32


def keyed() -> Service:
    return make_service(api_keys=frozenset({key_digest("sesame"), key_digest("schlüssel")}))


def routes(service: Service) -> list[tuple[str, str]]:
    """Every method and path of the application, with something in place of what a path leaves open."""
    app = app_of(service)
    found = [(method, route.path) for route in _flat(app.routes) for method in sorted(route.methods)]
    return [(method, re.sub(r"{[^}]*}", "x", path)) for method, path in found]


def _flat(routes: Iterable[Any]) -> Iterator[Any]:
    for route in routes:
        if hasattr(route, "methods"):
            yield route
        else:
            yield from _flat(getattr(route, "routes", None) or route.original_router.routes)


def test_every_route_but_health_and_the_dashboards_files_needs_a_key() -> None:
    """[70]"""
    service = keyed()
    asked = [*routes(service), ("GET", "/nowhere"), ("OPTIONS", CHAT), ("GET", "/health/"), ("GET", "//health")]
    open_ones = {path for method, path in asked if call(service, method, path).status_code != 401}
    assert len(asked) > 12
    assert open_ones == {"/health", "/ui"}


def test_a_refusal_for_want_of_a_key_looks_like_any_other() -> None:
    response = call(keyed(), "GET", "/version")
    assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
    assert "x-request-id" in response.headers


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-api-key": "sesame"}, 200),
        ({"x-api-key": "wrong"}, 401),
        ({"x-api-key": "sesame", "authorization": "Bearer placeholder"}, 200),
        ({"x-api-key": "placeholder", "authorization": "Bearer sesame"}, 200),
        ({"x-api-key": "", "authorization": "Basic sesame"}, 401),
    ],
)
def test_a_key_may_come_in_the_header_of_either_dialect(headers: dict[str, str], status: int) -> None:
    assert call(keyed(), "GET", "/version", headers=headers).status_code == status


@pytest.mark.parametrize("header", ["Bearer wrong", "sesame", "Basic sesame", "Bearer ", "Bearer sesame2"])
def test_wrong_key_is_refused(header: str) -> None:
    assert call(keyed(), "GET", "/version", headers={"authorization": header}).status_code == 401


@pytest.mark.parametrize("key", ["sesame", "schlüssel"])
def test_any_of_the_keys_opens(key: str) -> None:
    headers = {"authorization": f"Bearer {key}".encode()}
    assert call(keyed(), "GET", "/version", headers=headers).status_code == 200


def test_tenants_do_not_share_a_prefix_cache() -> None:
    """[46]"""
    service = keyed()
    for key in ("sesame", "schlüssel"):
        headers = {"authorization": f"Bearer {key}".encode()}
        assert call(service, "POST", CHAT, json={"messages": MESSAGES}, headers=headers).status_code == 200
    salts = {submit.cache_salt for submit in service.client.submitted}
    assert len(salts) == 2
    assert "" not in salts


def test_no_cross_origin_access() -> None:
    headers = {"origin": "https://elsewhere.example"}
    assert "access-control-allow-origin" not in call(make_service(), "GET", "/health", headers=headers).headers


def test_only_the_named_sites_are_let_in() -> None:
    service = make_service(cors_origins=("https://chat.example",))
    allowed = [
        call(service, "GET", "/health", headers={"origin": origin}).headers.get("access-control-allow-origin")
        for origin in ("https://chat.example", "https://elsewhere.example")
    ]
    assert allowed == ["https://chat.example", None]


def test_a_browser_may_ask_before_it_sends_a_key() -> None:
    service = make_service(api_keys=frozenset({key_digest("sesame")}), cors_origins=("https://chat.example",))
    headers = {
        "origin": "https://chat.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type",
    }
    response = call(service, "OPTIONS", CHAT, headers=headers)
    assert (response.status_code, response.headers["access-control-allow-origin"]) == (200, "https://chat.example")
    assert "authorization" in response.headers["access-control-allow-headers"]


def test_a_page_may_read_why_it_was_refused() -> None:
    service = make_service(api_keys=frozenset({key_digest("sesame")}), cors_origins=("https://chat.example",))
    response = call(service, "POST", CHAT, headers={"origin": "https://chat.example"})
    assert response.status_code == 401
    assert response.headers["access-control-allow-origin"] == "https://chat.example"


def test_two_apps_share_nothing() -> None:
    async def ids() -> list[str]:
        found = []
        for name in ("a", "b"):
            transport = httpx.ASGITransport(app_of(make_service(model_id=name)))
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                found.append((await client.get("/v1/models")).json()["data"][0]["id"])
        return found

    assert asyncio.run(ids()) == ["a", "b"]


def test_a_subclass_of_a_known_error_keeps_its_status() -> None:
    class Special(EngineError):
        pass

    assert error_response(Special("x")).status_code == 503


def test_fastapis_own_validation_errors_look_like_ours() -> None:
    fault = {"loc": ("query", "limit"), "msg": "not a number", "type": "int"}
    response = asyncio.run(handle_error(Request({"type": "http"}), RequestValidationError([fault])))
    assert response.status_code == 400
    assert b'"param":"query.limit"' in response.body
