"""A Service around a ScriptedEngine, alone on a server that is called in process or listens on a free port."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson
import uvicorn
from fastapi import FastAPI
from isotherm.api.app import create_app
from isotherm.api.server import Server
from isotherm.api.service import Service
from isotherm.daemon.chat_template import ChatTemplate
from isotherm.daemon.client import EngineClient
from isotherm.daemon.events import EventLog
from isotherm.daemon.fleet.fleet import Fleet
from isotherm.daemon.messages import Submit
from isotherm.daemon.structures import Structures
from support.scripted_engine import ByteTokenizer, ScriptedEngine, Step, says

MODEL = "org/tiny-moe"
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
TEMPLATE = """{% for message in messages -%}
{{ message.role }}: {{ message.content }}
{% endfor %}"""


class OneLineMetrics:
    def render(self) -> bytes:
        return b"isotherm_up 1.0\n"


def no_experts(phase: str) -> dict[str, Any]:
    """Of a model without any."""
    empty: dict[str, Any] = {name: [] for name in ("layers", "heat", "where", "coming")}
    return {"phase": phase, "devices": ["ram"], "experts": 0, "top_k": 0, "tokens": 0.0, **empty}


_OF_SERVER = ("metrics", "api_keys", "key_names", "cors_origins", "sinks")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAlone(Service):
    """around: settings of its server."""

    around: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class AsLoaded:
    """A service in the place of a loaded model."""

    service: Service
    nbytes: int = 0
    closed: Callable[[], None] = lambda: None

    def ailment(self) -> str | None:
        return None

    def abandon(self, reason: str) -> None:
        raise AssertionError("nothing hangs")

    def restart(self) -> None:
        raise AssertionError("nothing hangs")

    def close(self) -> None:
        self.closed()


class NoLoader:
    """Of models that are all there."""

    def demand(self, name: str) -> Callable[[int], object]:
        raise AssertionError(f"{name} is loaded")

    def tidy(self) -> None:
        raise AssertionError("nothing was unloaded")

    def load(self, name: str, progress: object) -> AsLoaded:
        raise AssertionError(f"{name} is loaded")


def make_service(engine: ScriptedEngine | EngineClient | list[Step] | str = "Hi", **changes: Any) -> ServiceAlone:
    """A service whose engine is the given one, or answers each request with the given steps or text."""
    if isinstance(engine, str | list):
        steps = says(engine) if isinstance(engine, str) else engine
        engine = ScriptedEngine(lambda submit: steps)
    given: dict[str, Any] = {
        "client": engine,
        "tokenizer": ByteTokenizer(),
        "chat_template": ChatTemplate(TEMPLATE),
        "structures": Structures(ByteTokenizer()),
        "model_id": MODEL,
        "created": 1_700_000_000,
        "events": EventLog(),
        "status": lambda: {"state": "ready"},
        "plan": lambda: None,
        "experts": no_experts,
    }
    around = {name: changes.pop(name) for name in _OF_SERVER if name in changes}
    return ServiceAlone(**given | changes, around=around)


def server_of(service: Service) -> Server:
    """A server with one model."""
    fleet: Fleet[AsLoaded] = Fleet((service.model_id,), NoLoader(), service.events)
    fleet.adopt(service.model_id, AsLoaded(service))
    around = service.around if isinstance(service, ServiceAlone) else {}
    given: dict[str, Any] = {
        "models": fleet,
        "created": service.created,
        "metrics": OneLineMetrics(),
        "events": service.events,
        "status": lambda _model: service.status(),
        "limits": service.limits,
    }
    return Server(**given | around)


def app_of(service: Service) -> FastAPI:
    """The application of a server with one model."""
    return create_app(server_of(service))


def by_prompt(answers: dict[str, str]) -> Callable[[Submit], Sequence[Step]]:
    """A script that answers by the prompt's text."""
    return lambda submit: says(answers[ByteTokenizer().decode(submit.prompt)])


def call(service: Service, method: str, path: str, **kwargs: Any) -> httpx.Response:
    """One request, in process."""

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app_of(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, **kwargs)

    return asyncio.run(run())


def chat(service: Service, text: str = "hello", **fields: Any) -> httpx.Response:
    """One chat request, in process."""
    return call(service, "POST", CHAT, json={"messages": [{"role": "user", "content": text}], **fields})


def complete(service: Service, prompt: Any = "hello", **fields: Any) -> httpx.Response:
    """One plain completion, in process."""
    return call(service, "POST", COMPLETIONS, json={"prompt": prompt, **fields})


def chunks(response: httpx.Response) -> list[Any]:
    """The JSON objects of a finished stream. Checks its framing and that DONE ends it, once."""
    events = response.text.split("\n\n")
    assert "\r" not in response.text
    assert events[-2:] == ["data: [DONE]", ""]
    data = [event for event in events[:-2] if not event.startswith(":")]
    assert all(event.startswith("data: {") for event in data)
    return [orjson.loads(event.removeprefix("data: ")) for event in data]


def serving(service: Service, port: int = 0, **config: Any) -> contextlib.AbstractContextManager[int]:
    """Serve a model by uvicorn in a thread; yields the port, a free one unless one is named."""
    return serve_app(app_of(service), port, **config)


@contextlib.contextmanager
def serve_app(app: FastAPI, port: int = 0, listener: socket.socket | None = None, **config: Any) -> Iterator[int]:
    """Serve by uvicorn in a thread; yields the port, a free one unless one is named, or a listener given."""
    listener = listener or socket.create_server(("127.0.0.1", port))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)  # so that an unread stream soon fills it
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1, **config)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def wait_until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Poll until the condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.005)
