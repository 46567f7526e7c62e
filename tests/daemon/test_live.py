"""What a running server goes by after a reload: limits, the access log, queues and the time to drain."""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from isotherm.api.app import create_app
from isotherm.api.sinks import Sinks
from isotherm.daemon.api_keys import NO_KEYS, KeyFile
from isotherm.daemon.cli.live import Live, limits_of
from isotherm.daemon.cli.reload import Reload
from isotherm.daemon.config import Config, key_digest
from isotherm.daemon.queue_books import QueueLimits
from isotherm.daemon.settings.settings import Told, gather
from support.api_service import COMPLETIONS, MODEL, make_service, serve_app, server_of, wait_until
from support.scripted_engine import ScriptedEngine, Step, says


class Running:
    """A server by settings in a file, over a played engine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "config.toml"
        self.queues: list[QueueLimits] = []
        self.drains: list[float] = []
        self.write('[log]\naccess = "old.log"')
        told = Told(flags={}, file=self.file)
        settings = gather(told, {})
        self.sinks = Sinks(settings.config.access_log, None, MODEL)
        limits = limits_of(settings.config)
        self.go_on = threading.Event()  # until then an answer has only its first letter
        self.go_on.set()
        engine = ScriptedEngine(lambda submit: self._answer())
        self.server = server_of(make_service(engine, sinks=self.sinks.all, limits=limits))
        hosted = SimpleNamespace(limit_queue=self.queues.append)
        self.fleet = SimpleNamespace(loaded=lambda: [(MODEL, hosted)], keep_s=0.0, max_waiting=0)
        self.loader = SimpleNamespace(configs={})
        self.live = self.make_live(local=True)
        self.reload = Reload(told, settings, self.live.take, self.server.events)

    def _answer(self) -> Iterator[Step]:
        yield from says("H")
        while not self.go_on.is_set():
            yield 0.005
        yield from says("ello")

    def make_live(self, *, local: bool) -> Live:
        daemon: Any = SimpleNamespace(drain_for=self.drains.append)
        fleet: Any = self.fleet
        loader: Any = self.loader
        return Live(server=self.server, sinks=self.sinks, fleet=fleet, loader=loader, daemon=daemon, local=local)

    def write(self, text: str) -> None:
        self.file.write_text(text)

    def wait_for(self, name: str, statuses: list[int]) -> None:
        """A request is logged when its last byte was sent, which its client may have read before."""
        wait_until(lambda: self.logged(name) == statuses)

    def logged(self, name: str) -> list[int]:
        return [json.loads(line)["status"] for line in (self.folder / name).read_text().splitlines()]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with ExitStack() as stack:
        made = Running(tmp_path)
        stack.callback(made.sinks.close)
        yield made


@pytest.fixture
def url(running: Running) -> Iterator[str]:
    with serve_app(create_app(running.server)) as port:
        yield f"http://127.0.0.1:{port}"


def complete(url: str, spaces: int = 0) -> int:
    """The status of one completion, of a body with so many spaces at its end."""
    body = json.dumps({"model": MODEL, "prompt": "x"}) + " " * spaces
    headers = {"content-type": "application/json"}
    return httpx.post(url + COMPLETIONS, content=body, headers=headers, timeout=20).status_code


def test_limits_and_the_access_log_are_those_of_now(running: Running, url: str) -> None:
    assert complete(url, 2000) == 200
    running.wait_for("old.log", [200])
    running.write('[log]\naccess = "new.log"\n[limits]\nmax_body_mib = 0.001')
    assert running.reload({}) == "reloaded"
    assert complete(url, 2000) == 413
    running.wait_for("new.log", [413])
    running.write("")
    assert running.reload({}) == "reloaded"
    assert complete(url, 2000) == 200
    assert (running.logged("old.log"), running.logged("new.log")) == ([200], [413])


def test_an_open_stream_is_logged_where_the_log_is_when_it_ends(running: Running, url: str) -> None:
    body = {"model": MODEL, "prompt": "x", "stream": True}
    running.go_on.clear()
    with httpx.stream("POST", url + COMPLETIONS, json=body, timeout=20) as answer:
        lines = answer.iter_lines()
        next(lines)
        running.write('[log]\naccess = "new.log"')
        assert running.reload({}) == "reloaded"
        running.go_on.set()
        assert list(lines)[-2] == "data: [DONE]"
    running.wait_for("new.log", [200])
    assert running.logged("old.log") == []


def test_an_access_log_that_cannot_be_written_changes_nothing(running: Running, url: str) -> None:
    running.write('[log]\naccess = "missing/new.log"\n[limits]\nmax_body_mib = 0.001')
    assert running.reload({}).startswith("not reloaded")
    assert running.server.events.counts() == {"reload_refused": 1}
    assert complete(url, 2000) == 200
    running.wait_for("old.log", [200])


def test_queues_of_models_loaded_now_and_later_are_those_of_now(running: Running) -> None:
    running.write("[server]\ndrain_s = 90\n[engine]\nmax_queued = 7\nmax_queued_tokens = 70\n[pool]\nkeep_s = 5")
    assert running.reload({}) == "reloaded"
    assert running.queues == [QueueLimits(max_queued=7, max_queued_tokens=70)]
    assert [config.max_queued for config in running.loader.configs.values()] == [7]
    assert (running.fleet.max_waiting, running.fleet.keep_s, running.drains) == (7, 5.0, [90.0])
    assert running.server.limits.max_choices == 7


@pytest.mark.parametrize(
    ("local", "names", "told"), [(True, False, {}), (False, True, {}), (False, False, {"open_to_network": 1})]
)
def test_a_server_that_a_reload_opens_to_the_network_tells_so(
    running: Running, local: bool, names: bool, told: dict[str, int]
) -> None:
    keys = KeyFile({key_digest("alpha"): "alpha"}, (), None) if names else NO_KEYS
    running.make_live(local=local).take({MODEL: Config()}, keys)
    assert running.server.events.counts() == told
