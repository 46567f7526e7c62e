"""Settings that change while a server runs: requests go on, keys and origins are those of now, what is wrong changes
nothing."""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest
from isotherm.api.app import create_app
from isotherm.daemon.api_keys import KeyFile
from isotherm.daemon.cli.reload import Hangup, Reload, keys_of
from isotherm.daemon.config import Config
from isotherm.daemon.settings.settings import Told, gather
from support.api_service import COMPLETIONS, MODEL, make_service, serve_app, server_of
from support.scripted_engine import ScriptedEngine, Step, says

BODY = {"model": MODEL, "prompt": "x"}


class Running:
    """A server whose doors are those of a file."""

    def __init__(self, tmp_path: Path) -> None:
        self.file, self.keys = tmp_path / "config.toml", tmp_path / "keys.txt"
        self.write("keys.txt", "first")
        told = Told(flags={}, file=self.file)
        settings = gather(told, {})
        keys = keys_of(settings.config)
        self.go_on = threading.Event()  # until then an answer has only its first letter
        engine = ScriptedEngine(lambda submit: self._answer())
        service = make_service(engine, api_keys=frozenset(keys.names), key_names=keys.names)
        self.server = server_of(service)
        self.applied: list[Config] = []
        self.reload = Reload(told, settings, self._apply, self.server.events)

    def _answer(self) -> Iterator[Step]:
        yield from says("H")
        while not self.go_on.is_set():
            yield 0.005
        yield from says("ello")

    def write(self, key_file: str, key: str = "", more: str = "") -> None:
        self.file.write_text(f'[server]\napi_key_file = "{key_file}"\n{more}')
        if key:
            self.keys.write_text(key)
            self.keys.chmod(0o600)

    def _apply(self, models: Mapping[str, Config], keys: KeyFile) -> None:
        (config,) = models.values()
        self.applied.append(config)
        self.server.doors.set(keys.names, keys.names, config.cors_origins)


@pytest.fixture
def running(tmp_path: Path) -> Running:
    return Running(tmp_path)


@pytest.fixture
def url(running: Running) -> Iterator[str]:
    with serve_app(create_app(running.server)) as port:
        yield f"http://127.0.0.1:{port}"


def status(url: str, key: str) -> int:
    return httpx.get(f"{url}/v1/models", headers={"authorization": f"Bearer {key}"}, timeout=20).status_code


def test_keys_are_those_of_now_and_open_requests_go_on(running: Running, url: str) -> None:
    assert (status(url, "first"), status(url, "second")) == (200, 401)
    headers = {"authorization": "Bearer first"}
    with httpx.stream("POST", url + COMPLETIONS, json=BODY | {"stream": True}, headers=headers, timeout=20) as answer:
        lines = answer.iter_lines()
        next(lines)
        running.write("keys.txt", "second")
        assert running.reload({}) == "reloaded"
        assert (status(url, "first"), status(url, "second")) == (401, 200)
        running.go_on.set()
        assert list(lines)[-2] == "data: [DONE]"


def test_origins_are_those_of_now(running: Running, url: str) -> None:
    def allowed() -> str | None:
        headers = {"origin": "https://a.example", "access-control-request-method": "POST"}
        return httpx.options(url + COMPLETIONS, headers=headers, timeout=20).headers.get("access-control-allow-origin")

    assert allowed() is None
    running.write("keys.txt", more='cors_origins = ["https://a.example"]')
    running.reload({})
    assert allowed() == "https://a.example"
    running.write("keys.txt")
    running.reload({})
    assert allowed() is None


@pytest.mark.parametrize("more", ["prot = 3", "port = 'x'", "[engine"])
def test_a_file_that_is_wrong_changes_nothing_and_is_told(running: Running, url: str, more: str) -> None:
    running.write("keys.txt", "second", more)
    assert running.reload({}).startswith(f"not reloaded: {running.file}")
    assert running.server.events.counts() == {"reload_refused": 1}
    assert (status(url, "first"), status(url, "second")) == (200, 401)


def test_a_key_file_that_is_gone_changes_nothing(running: Running, url: str) -> None:
    running.keys.unlink()
    assert "cannot be read" in running.reload({})
    assert status(url, "first") == 200


def test_what_needs_a_restart_is_named_each_time(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    running.write("keys.txt", more="drain_s = 5\n[engine]\nthreads = 7")
    for _ in range(2):
        assert running.reload({}) == "reloaded, but restart for engine.threads"
    assert [(config.drain_s, config.threads) for config in running.applied] == [(5.0, None)] * 2
    assert "engine.threads" in caplog.text


def test_a_hangup_before_there_is_something_to_reload_is_made_up_for() -> None:
    reloads: list[str] = []
    early, none = Hangup(), Hangup()
    early(1, None)
    early.begin(lambda: reloads.append("early"))
    none.begin(lambda: reloads.append("none"))
    assert reloads == ["early"]


TERMINALS = """
import os, sys
from isotherm.daemon.cli.reload import has_terminal
before = has_terminal()
os.open(sys.argv[1], os.O_RDWR)  # it becomes the terminal of a session that has none
print(before, has_terminal())
"""


def test_a_terminal_whose_end_would_be_told_is_known() -> None:
    ours, theirs = os.openpty()
    try:
        program = [sys.executable, "-c", TERMINALS, os.ttyname(theirs)]
        told = subprocess.run(program, start_new_session=True, capture_output=True, text=True, check=True, timeout=60)
    finally:
        os.close(ours)
        os.close(theirs)
    assert told.stdout.split() == ["False", "True"]
