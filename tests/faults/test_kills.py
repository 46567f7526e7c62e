"""kill -9 at random moments of a daemon's life: nothing that is kept is harmed, no client hangs, the next start serves
as if nothing had been.

ISOTHERM_KILLS is how many there are of each kind: few in every run of the tests, many when one wants to know.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from isotherm.daemon.state import live_daemons
from isotherm.placement.plan_file import save_plan
from isotherm.placement.shape import CPU
from support import tiny
from support.accelerated import CARD, plan_of
from support.daemon_process import Daemon, launched, running
from support.kept_machine import keep_profile

KILLS = int(os.environ.get("ISOTHERM_KILLS", "1"))
PATIENCE_S = 30.0
QUESTION = {"prompt": "the cat", "max_tokens": 24, "temperature": 0, "ignore_eos": True}
LONG = QUESTION | {"max_tokens": 400}


class Home:
    """Where daemons of one test keep what they keep. options: of each start."""

    def __init__(self, folder: Path, model: Path, *options: object) -> None:
        self.folder, self.model, self.options = folder, model, options
        self.cache = folder / "cache"
        self.draw = random.Random(f"kills of {model.name}")

    @contextmanager
    def serving(self) -> Iterator[Daemon]:
        with running(self.folder, self.model, *self.options, cache=self.cache) as daemon:
            yield daemon

    def kill_while_it_starts(self, within_s: float) -> None:
        with launched(self.folder, self.model, *self.options, cache=self.cache) as (process, _):
            time.sleep(self.draw.uniform(0, within_s))
            process.kill()

    def stores(self) -> list[Path]:
        return sorted((self.cache / "isotherm" / "packed").glob("*.packed"))

    def halves(self) -> list[Path]:
        """Files that a process had begun to write."""
        return [path for path in self.folder.rglob("*") if ".part" in path.name or ".json." in path.name]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / "tiny.gguf"
    tiny.write_gguf(path, "qwen3_moe", "Q4_0")
    return Home(tmp_path, path)


def ask(daemon: Daemon, question: dict[str, Any] = QUESTION) -> str:
    answer = httpx.post(f"{daemon.url}/v1/completions", json=question, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


def wait_for(condition: Any) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.02)


def flooded(daemon: Daemon, ends: list[str]) -> list[threading.Thread]:
    """Clients of all kinds, each of which notes its end."""

    def client(stream: bool) -> None:
        try:
            with httpx.stream(
                "POST", f"{daemon.url}/v1/completions", json=LONG | {"stream": stream}, timeout=60, trust_env=False
            ) as answer:
                ends.append("whole" if b"finish_reason" in answer.read() else "cut")
        except httpx.TimeoutException:
            ends.append("hung")
        except httpx.HTTPError:
            ends.append("cut")

    threads = [threading.Thread(target=client, args=(bool(number % 2),)) for number in range(6)]
    for thread in threads:
        thread.start()
    return threads


def test_kills_while_it_loads_packs_and_serves(home: Home) -> None:
    with home.serving() as daemon:
        right = ask(daemon)
        wait_for(home.stores)
        whole = home.stores()[0].read_bytes()
        assert daemon.stop() == 0
    for _ in range(KILLS):
        home.kill_while_it_starts(within_s=4.0)  # load
        assert live_daemons() == []
        for store in home.stores():
            assert store.read_bytes() == whole
            store.unlink()
        home.kill_while_it_starts(within_s=5.0)  # pack
        assert live_daemons() == []
        assert all(store.read_bytes() == whole for store in home.stores())
        with home.serving() as daemon:
            assert ask(daemon) == right
            ends: list[str] = []
            clients = flooded(daemon, ends)
            time.sleep(home.draw.uniform(0, 0.3))
            daemon.stop(signal.SIGKILL)
            for client in clients:
                client.join(PATIENCE_S)
            assert len(ends) == len(clients) and "hung" not in ends
        assert live_daemons() == []
    with home.serving() as daemon:
        assert ask(daemon) == right
        wait_for(lambda: home.stores() and not home.halves())
        assert home.stores()[0].read_bytes() == whole
        assert [state.url for state in live_daemons()] == [daemon.url]
        wait_for(lambda: len(list((home.folder / "state" / "isotherm").glob("serve-*.json"))) == 1)
        assert daemon.stop() == 0


def test_kills_while_experts_move(home: Home) -> None:
    keep_profile(threads=2)
    plan = home.folder / "plan.json"
    save_plan(plan_of(home.model, experts=[0, CPU, 0, CPU, 0, 0, CPU, 0]), plan)
    home.options = ("--accelerator", CARD, "--plan", plan)
    right = ""
    for number in range(KILLS + 1):
        with home.serving() as daemon:
            right = right or ask(daemon)
            assert ask(daemon) == right, f"after {number} kills"
            layers = httpx.get(f"{daemon.url}/admin/placement", trust_env=False).json()["layers"]
            assert layers[0]["experts"].count("gpu0") == 5, layers
            over = time.monotonic() + home.draw.uniform(0, 0.5)
            while time.monotonic() < over:
                ask(daemon)
                back = home.draw.random() < 0.5
                body = {"dry_run": False, "rollback": back}
                told = httpx.post(f"{daemon.url}/admin/rebalance", json=body, timeout=60, trust_env=False)
                assert told.status_code in (200, 400, 409), told.text
            daemon.stop(signal.SIGKILL)
            assert "rejected" not in daemon.output.read_text()
    assert not list(home.folder.rglob("*.rejected"))
