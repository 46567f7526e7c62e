"""What the daemon tells its service manager from start to end, and when it stops to give signs of life."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from support import tiny
from support.daemon_process import PATIENCE_S, environment
from support.notify_socket import NotifySocket

PERIOD_S = 0.4  # of the manager's watchdog
# A step hangs as long as a file exists, and is taken for hung after so many seconds.
HANGING = """
import os, sys, threading, time
hang, seconds, *line = sys.argv[1:]
from isotherm.daemon import pulse, runner
execute, init = runner.DecoderRunner.execute, pulse.EngineWatch.__init__
def wait(self, plan):
    while os.path.exists(hang) and threading.current_thread().name == "isotherm-engine":  # not in the self-test
        time.sleep(0.05)
    return execute(self, plan)
runner.DecoderRunner.execute = wait
pulse.EngineWatch.__init__ = lambda self, limit: init(self, float(seconds))
sys.argv = ["isotherm", *line]
from isotherm.daemon.cli import main
main()
"""
# As systemd passes a socket: as descriptor 3, to the process that the variables name.
PASS = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


@dataclass
class Supervised:
    """hang: while this file exists, steps of the model do not end."""

    process: subprocess.Popen[bytes]
    manager: NotifySocket
    hang: Path

    def ask(self, url: str, max_tokens: int) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": max_tokens, "ignore_eos": True}
        return httpx.post(f"{url}/chat/completions", json=body, timeout=60, trust_env=False)

    def until_ready(self) -> tuple[list[list[str]], str]:
        """What was told up to then, and the URL."""
        messages = self.manager.until("READY=1", PATIENCE_S)
        return messages, messages[-1][1].rsplit(" ", 1)[1]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny-moe.gguf"
    tiny.write_gguf(path, "mixtral", "Q4_0", max_position_embeddings=4096)
    return path


@contextmanager
def supervised(
    folder: Path, model: Path, listener: socket.socket | None = None, *, step_limit_s: float = PATIENCE_S
) -> Iterator[Supervised]:
    hang = folder / "hang"
    config = folder / "config.toml"
    config.write_text("[server]\ndrain_s = 20.0\n")
    line = ["-c", HANGING, str(hang), str(step_limit_s), "serve", str(model), "--threads", "2", "--no-pack-cache"]
    line += ["--config", str(config)]
    line += ["--port", "0"] if listener is None else []
    with NotifySocket(folder) as manager, (folder / "log").open("wb") as log:
        variables = environment(folder) | {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": str(int(PERIOD_S * 1e6))}
        start = [sys.executable] if listener is None else [sys.executable, "-c", PASS, str(listener.fileno())]
        passed = () if listener is None else (listener.fileno(),)
        process = subprocess.Popen([*start, *line], env=variables, pass_fds=passed, stdout=log, stderr=log)
        try:
            yield Supervised(process, manager, hang)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


def names(messages: list[list[str]]) -> list[str]:
    return [message[0].split("=")[0] for message in messages]


def test_a_life_is_told_in_order(tmp_path: Path, model: Path) -> None:
    with supervised(tmp_path, model) as daemon:
        loading, url = daemon.until_ready()
        assert set(names(loading[:-1])) == {"STATUS"}
        assert any("packing weights" in message[0] for message in loading)
        assert all(message[1].startswith("EXTEND_TIMEOUT_USEC=") for message in loading[:-1])
        assert daemon.ask(url, 2).json()["usage"]["completion_tokens"] == 2
        assert names([daemon.manager.next(PATIENCE_S) for _ in range(3)]) == ["WATCHDOG"] * 3  # idle

        daemon.process.send_signal(signal.SIGHUP)
        told = [message for message in daemon.manager.until("RELOADING=1", PATIENCE_S) if message[0] != "WATCHDOG=1"]
        assert told[0][1].startswith("MONOTONIC_USEC=")
        ready = daemon.manager.until("READY=1", PATIENCE_S)[-1]
        assert ready[1].startswith("STATUS=reloaded; serving tiny-moe at ")
        assert httpx.get(url.replace("/v1", "/health"), timeout=60, trust_env=False).status_code == 200

        daemon.process.send_signal(signal.SIGTERM)
        end = daemon.manager.until("STOPPING=1", PATIENCE_S)[-1]
        assert end[2] == "EXTEND_TIMEOUT_USEC=80000000"
        assert daemon.process.wait(PATIENCE_S) == 0
        assert names(daemon.manager.rest()).count("STOPPING") == 0


def test_signs_of_life_go_on_while_requests_run(tmp_path: Path, model: Path) -> None:
    with supervised(tmp_path, model) as daemon:
        _, url = daemon.until_ready()
        daemon.manager.rest()
        daemon.ask(url, 1500)
        assert set(names(daemon.manager.rest())) == {"WATCHDOG"}


def test_ready_waits_for_the_first_token(tmp_path: Path, model: Path) -> None:
    (tmp_path / "hang").touch()
    with supervised(tmp_path, model) as daemon:
        while "compiling" not in daemon.manager.next(PATIENCE_S)[0]:
            pass
        with pytest.raises(TimeoutError):
            while True:
                assert daemon.manager.next(3.0)[0] != "READY=1"
        daemon.hang.unlink()
        daemon.until_ready()


def test_signs_of_life_stop_when_a_step_hangs_though_http_goes_on(tmp_path: Path, model: Path) -> None:
    with supervised(tmp_path, model, step_limit_s=1.0) as daemon:
        _, url = daemon.until_ready()
        daemon.hang.touch()
        body = {"prompt": "a", "stream": True}
        with httpx.stream("POST", f"{url}/completions", json=body, timeout=60, trust_env=False):
            told = daemon.manager.next(PATIENCE_S)
            while told[0] == "WATCHDOG=1":
                told = daemon.manager.next(PATIENCE_S)
        assert told[0].startswith("STATUS=not well: a step of the model has been running for ")
        assert httpx.get(url.replace("/v1", "/health"), timeout=60, trust_env=False).status_code in (200, 503)
        with pytest.raises(TimeoutError):
            daemon.manager.next(5 * PERIOD_S)
        daemon.hang.unlink()
        assert daemon.manager.next(PATIENCE_S)[0] == "WATCHDOG=1"


def test_a_passed_socket_is_served_on(tmp_path: Path, model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, supervised(tmp_path, model, listener) as daemon:
        port = listener.getsockname()[1]
        url = f"http://127.0.0.1:{port}/v1"
        assert daemon.ask(url, 1).status_code == 200  # it waited in the socket while the model was loaded
        assert daemon.until_ready()[1] == url
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(PATIENCE_S) == 0
        with socket.create_connection(("127.0.0.1", port), timeout=60):  # it is still the manager's
            pass


def test_a_refused_model_ends_with_its_exit_code_and_never_was_ready(tmp_path: Path) -> None:
    model = tmp_path / "none.gguf"
    model.write_bytes(b"GGUF, but not really")
    with supervised(tmp_path, model) as daemon:
        assert daemon.process.wait(PATIENCE_S) == 3
        assert "READY" not in names(daemon.manager.rest())
