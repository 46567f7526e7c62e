"""Several models behind one server: whose request is whose, who waits, and what is said meanwhile."""

import asyncio
import threading
from typing import Any

import orjson
import pytest
from isotherm.api.app import create_app
from isotherm.api.service import Limits
from support.api_service import CHAT, COMPLETIONS
from support.scripted_engine import says
from support.several_models import Shelf, asking, until

ASK: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "x"}]},
    COMPLETIONS: {"prompt": "x"},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 50},
    "/api/chat": {"messages": [{"role": "user", "content": "x"}], "stream": False},
    "/api/generate": {"prompt": "x", "stream": False},
}
OTHERS: dict[str, dict[str, Any]] = {
    "/tokenize": {"prompt": "x"},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/embeddings": {"input": "x"},
    "/api/embed": {"input": "x"},
}


def two(**options: Any) -> Shelf:
    return Shelf({"org/a": says("from a"), "org/b": says("from b")}, **options)


def gated(name: str = "org/b") -> Shelf:
    """One model waits at a gate; streams that wait for it are pinged soon."""
    shelf = two(limits=Limits(ping_interval=0.02))
    shelf.gates[name] = threading.Event()
    return shelf


@pytest.mark.parametrize("path", ASK)
@pytest.mark.parametrize(("model", "said"), [("org/a", "from a"), ("org/b", "from b"), ("", "from a")])
def test_a_request_goes_to_the_model_that_it_names(path: str, model: str, said: str) -> None:
    async def work() -> None:
        shelf = two()
        async with asking(shelf) as client:
            response = await client.post(path, json={**ASK[path], "model": model})
            assert (response.status_code, said in response.text) == (200, True), response.text

    asyncio.run(work())


@pytest.mark.parametrize("path", [*ASK, *OTHERS])
def test_an_unknown_model_is_not_found_and_the_known_ones_are_named(path: str) -> None:
    async def work() -> None:
        shelf = two()
        async with asking(shelf) as client:
            response = await client.post(path, json={**ASK.get(path, OTHERS.get(path, {})), "model": "c"})
            assert response.status_code == 404
            error = response.json()["error"]
            message = error if path.startswith("/api/") else error["message"]
            assert message == "the model 'c' is not served here; this server has 'org/a', 'org/b'"
            assert shelf.log == []

    asyncio.run(work())


@pytest.mark.parametrize("path", OTHERS)
def test_what_is_asked_of_a_model_without_a_text_goes_to_it_too(path: str) -> None:
    async def work() -> None:
        shelf = two()
        async with asking(shelf) as client:
            assert (await client.post(path, json={**OTHERS[path], "model": "org/b"})).status_code == 200
            assert shelf.log == ["+org/b"]
        assert [row["requests"] for row in shelf.fleet.show()] == [0, 0]

    asyncio.run(work())


def test_ollamas_names_have_tags() -> None:
    async def work() -> None:
        async with asking(two()) as client:
            response = await client.post("/api/chat", json={**ASK["/api/chat"], "model": "org/b:latest"})
            assert response.json()["message"]["content"] == "from b"

    asyncio.run(work())


def test_all_models_are_listed_and_told_which_are_loaded() -> None:
    async def work() -> None:
        async with asking(two()) as client:
            await client.post(CHAT, json={**ASK[CHAT], "model": "org/b"})
            listed = (await client.get("/v1/models")).json()["data"]
            assert [(row["id"], row.get("max_model_len")) for row in listed] == [("org/a", None), ("org/b", 1000)]
            assert (await client.get("/v1/models/org/a")).json()["id"] == "org/a"
            tags = (await client.get("/api/tags")).json()["models"]
            assert [row["name"] for row in tags] == ["org/a:latest", "org/b:latest"]
            loaded = (await client.get("/api/ps")).json()["models"]
            assert [row["name"] for row in loaded] == ["org/b:latest"]
            shown = (await client.post("/api/show", json={"model": "org/a"})).json()
            assert shown["capabilities"] == ["completion"]
            assert (await client.get("/admin/status", params={"model": "org/b"})).json()["model"] == "org/b"

    asyncio.run(work())


def test_a_model_in_use_is_not_unloaded_until_its_answer_has_ended() -> None:
    async def work() -> None:
        shelf = Shelf({"a": says("a long answer", delay=0.02), "b": says("b")})
        async with asking(shelf) as client:
            first = asyncio.create_task(client.post(CHAT, json={**ASK[CHAT], "model": "a", "stream": True}))
            await until(lambda: shelf.engines["a"].open)
            second = await client.post(CHAT, json={**ASK[CHAT], "model": "b"})
            assert shelf.log == ["+a", "-a", "+b"]
            assert second.json()["choices"][0]["message"]["content"] == "b"
            text = "".join(
                choice["delta"].get("content") or ""
                for line in (await first).text.splitlines()
                if line.startswith("data: {")
                for choice in orjson.loads(line[6:])["choices"]
            )
            assert text == "a long answer"

    asyncio.run(work())


@pytest.mark.parametrize(
    ("path", "ping", "last"),
    [
        (CHAT, ": ping", "data: [DONE]"),
        (COMPLETIONS, ": ping", "data: [DONE]"),
        ("/v1/responses", ": ping", "response.completed"),
        ("/v1/messages", "event: ping", "message_stop"),
        ("/api/chat", '"content":""', '"done":true'),
        ("/api/generate", '"response":""', '"done":true'),
    ],
)
def test_a_stream_is_pinged_while_its_model_is_loaded(path: str, ping: str, last: str) -> None:
    async def work() -> None:
        shelf = gated()
        async with asking(shelf) as client:
            body = {**ASK[path], "model": "org/b", "stream": True}
            asked = asyncio.create_task(client.post(path, json=body))
            await until(lambda: shelf.fleet.loading() == ["org/b"])
            await asyncio.sleep(0.1)
            shelf.gates["org/b"].set()
            response = await asked
            assert response.status_code == 200
            assert ping in response.text.strip().splitlines()[0]
            assert last in response.text
            assert len(shelf.engines["org/b"].submitted) == 1

    asyncio.run(work())


@pytest.mark.parametrize("path", [CHAT, "/v1/responses", "/v1/messages", "/api/chat"])
def test_a_load_that_fails_is_told_in_a_stream_that_was_opened(path: str) -> None:
    async def work() -> None:
        shelf = gated()
        shelf.broken["org/b"] = ValueError("its file is cut")
        async with asking(shelf) as client:
            asked = asyncio.create_task(client.post(path, json={**ASK[path], "model": "org/b", "stream": True}))
            await until(lambda: shelf.fleet.loading() == ["org/b"])
            await asyncio.sleep(0.1)
            shelf.gates["org/b"].set()
            response = await asked
            assert response.status_code == 200
            assert "the model 'org/b' could not be loaded: its file is cut" in response.text
            assert "error" in response.text

    asyncio.run(work())


def test_a_request_that_is_refused_after_the_wait_is_told_so_in_its_stream() -> None:
    async def work() -> None:
        shelf = gated()
        async with asking(shelf) as client:
            body = {"messages": [], "model": "org/b", "stream": True, "temperature": -1}
            asked = asyncio.create_task(client.post(CHAT, json=body))
            await until(lambda: shelf.fleet.loading() == ["org/b"])
            await asyncio.sleep(0.1)
            shelf.gates["org/b"].set()
            response = await asked
            assert response.text.endswith("data: [DONE]\n\n")
            assert "invalid_request_error" in response.text

    asyncio.run(work())


def test_a_model_that_cannot_be_loaded_is_unavailable_and_the_others_are_not() -> None:
    async def work() -> None:
        shelf = two()
        shelf.broken["org/b"] = ValueError("its file is cut")
        async with asking(shelf) as client:
            for _ in range(2):
                response = await client.post(CHAT, json={**ASK[CHAT], "model": "org/b"})
                assert response.status_code == 503
                assert 1 <= int(response.headers["retry-after"]) <= 30
                assert "its file is cut" in response.json()["error"]["message"]
            assert (await client.post(CHAT, json=ASK[CHAT])).status_code == 200
            assert (await client.get("/health")).status_code == 200

    asyncio.run(work())


def test_health_stays_good_and_says_what_is_loaded_now() -> None:
    async def work() -> None:
        shelf = gated()
        async with asking(shelf) as client:
            asked = asyncio.create_task(client.post(CHAT, json={**ASK[CHAT], "model": "org/b"}))
            await until(lambda: shelf.fleet.loading() == ["org/b"])
            health = await client.get("/health")
            assert (health.status_code, health.json()) == (200, {"status": "ok", "loading": "org/b"})
            shelf.gates["org/b"].set()
            await asked
            assert (await client.get("/health")).json() == {"status": "ok"}

    asyncio.run(work())


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_while_it_waits_gives_up_its_place(stream: bool) -> None:
    async def work() -> None:
        shelf = gated()
        body = orjson.dumps({**ASK[CHAT], "model": "org/b", "stream": stream})
        came, left = [{"type": "http.request", "body": body}], asyncio.Event()

        async def receive() -> dict[str, Any]:
            if came:
                return came.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            pass

        scope = {"type": "http", "method": "POST", "path": CHAT, "query_string": b"", "state": {}}
        headers = [(b"content-type", b"application/json")]
        app = create_app(shelf.server)
        asked = asyncio.create_task(app({**scope, "headers": headers}, receive, send))  # type: ignore[arg-type]
        await until(lambda: shelf.fleet.show()[1]["waiting"] == 1)
        left.set()
        await asked
        assert shelf.fleet.show()[1]["waiting"] == 0
        shelf.gates["org/b"].set()
        await until(lambda: not shelf.fleet.loading())
        assert shelf.engines["org/b"].submitted == []
        assert shelf.fleet.show()[1]["requests"] == 0

    asyncio.run(work())


@pytest.mark.parametrize(("keep_alive", "cold"), [(0, True), ("0s", True), ("5m", False), (-1, False)])
def test_ollamas_clients_say_how_long_a_model_stays(keep_alive: Any, cold: bool) -> None:
    async def work() -> None:
        shelf = two()
        async with asking(shelf) as client:
            body = {"model": "org/b", "keep_alive": keep_alive, "prompt": ""}
            answer = (await client.post("/api/generate", json=body)).json()
            assert answer["done_reason"] == ("unload" if cold else "load")
            shelf.fleet.let_go()
            assert [row["state"] for row in shelf.fleet.show()] == ["cold", "leaving" if cold else "ready"]
            await until(lambda: shelf.log == (["+org/b", "-org/b"] if cold else ["+org/b"]))
            wrong = await client.post("/api/generate", json={**body, "stream": False, "keep_alive": "soon"})
            assert wrong.status_code == 400

    asyncio.run(work())


def test_many_requests_for_both_are_all_answered_by_the_right_model() -> None:
    async def work() -> None:
        shelf = Shelf({"a": says("aaaa", delay=0.001), "b": says("bbbb", delay=0.001)})
        async with asking(shelf) as client:

            async def ask_in_turn(names: str) -> None:
                for name in names:
                    response = await client.post(CHAT, json={**ASK[CHAT], "model": name})
                    answer = response.json()
                    assert (response.status_code, answer["model"]) == (200, name)
                    assert answer["choices"][0]["message"]["content"] == name * 4

            await asyncio.gather(*(ask_in_turn(("ab" * 5)[first:]) for first in (0, 1, 0, 1)))
        assert len(shelf.log) >= 19  # there is room for one, and each client asks for the other after it
        assert [row["requests"] + row["waiting"] for row in shelf.fleet.show()] == [0, 0]

    asyncio.run(work())
