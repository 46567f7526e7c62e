"""The installed service under a real systemd: ready, asked, hung, restarted, started by its socket, and gone."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from isotherm.cpu_kernels.jit import cache_folder as kernel_folder
from support import tiny
from support.daemon_process import COMMAND
from support.own_systemd import OwnSystemd, booted, missing

SERVICE, SOCKET = "isotherm.service", "isotherm.socket"
PORT = 8440  # of its own network
ASK = f"""
import httpx
body = {{"messages": [{{"role": "user", "content": "the cat"}}], "max_tokens": 3, "ignore_eos": True}}
answer = httpx.post("http://127.0.0.1:{PORT}/v1/chat/completions", json=body, timeout=100, trust_env=False)
print(answer.json()["usage"]["completion_tokens"])
"""
# Signs of life are missed sooner than in real life, and the log goes to a file, since no journal runs.
DROP_IN = "[Service]\nWatchdogSec=10\nStandardError=append:/run/isotherm.log\n"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnSystemd]:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    with booted(tmp_path_factory.mktemp("systemd"), {**os.environ, "COLUMNS": "200"}) as found:
        if isinstance(found, str):
            pytest.skip(found)
        search = os.environ.get("PYTHONPATH")
        lines = DROP_IN + (f"Environment=PYTHONPATH={search}\n" if search else "")
        folder = f"/etc/systemd/system/{SERVICE}.d"
        found.run("sh", "-c", f"mkdir -p {folder} && printf '%s' \"$1\" > {folder}/test.conf", "sh", lines)
        yield found


@pytest.fixture(autouse=True)
def compiled(machine: OwnSystemd) -> None:
    """Compiling takes minutes on a slow machine; what this one has compiled is the service's from the start."""
    kernel_folder().mkdir(parents=True, exist_ok=True)
    copy = 'mkdir -p /var/cache/isotherm/kernels && cp -r "$1" /var/cache/isotherm/kernels'
    machine.run("sh", "-c", copy, "sh", kernel_folder())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    folder.chmod(0o755)
    path = folder / "tiny-moe.gguf"
    tiny.write_gguf(path, "mixtral", "Q4_0", max_position_embeddings=4096)
    return path


def isotherm(machine: OwnSystemd, *arguments: object) -> str:
    return machine.run(*COMMAND, *arguments).stdout


def log(machine: OwnSystemd) -> str:
    return machine.run("cat", "/run/isotherm.log", check=False).stdout


def ask(machine: OwnSystemd) -> str:
    return machine.run(sys.executable, "-c", ASK).stdout.strip()


def kept(machine: OwnSystemd) -> str:
    folders = ("/etc/systemd/system", "/etc/isotherm", "/var/lib", "/var/cache")
    return machine.run("find", *folders, "-name", "*isotherm*", "-not", "-name", "*.d", check=False).stdout


def test_installed_service_serves_survives_a_hang_and_leaves_nothing(machine: OwnSystemd, model: Path) -> None:
    told = isotherm(machine, "service", "install", "--", model, "--port", PORT, "--threads", 2)
    assert f"serving tiny-moe at http://127.0.0.1:{PORT}/v1" in told, log(machine)
    assert ask(machine) == "3"
    status = json.loads(isotherm(machine, "service", "status", "--json"))
    assert (status["active"], status["at_boot"], status["restarts"]) == (True, True, 0)
    assert machine.run("stat", "-c", "%U", f"/proc/{status['pid']}").stdout.strip() != "root"

    machine.run("kill", "-STOP", status["pid"])
    machine.wait_for(SERVICE, "NRestarts", "1")
    machine.wait_for(SERVICE, "ActiveState", "active")
    assert "restarts    1" in isotherm(machine, "service", "status")
    assert "Fatal Python error: Aborted" in log(machine)
    assert ask(machine) == "3"

    machine.run("systemctl", "stop", SERVICE)
    assert machine.show(SERVICE, "Result") == "success"
    left = isotherm(machine, "service", "uninstall", "--purge")
    assert f"left /etc/systemd/system/{SERVICE}.d" in left
    assert kept(machine) == ""


def test_who_connects_starts_the_service_of_a_socket(machine: OwnSystemd, model: Path) -> None:
    isotherm(machine, "service", "install", "--socket", f"127.0.0.1:{PORT}", "--", model, "--threads", 2)
    assert machine.show(SERVICE, "ActiveState") == "inactive"
    assert ask(machine) == "3"
    assert machine.show(SERVICE, "ActiveState") == "active"
    isotherm(machine, "service", "uninstall", "--purge")
    assert kept(machine) == ""


def test_a_cause_that_no_restart_mends_is_told_and_not_tried_again(machine: OwnSystemd, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    model = tmp_path / "none.gguf"
    model.write_bytes(b"GGUF, but not really")
    line = [*COMMAND, "service", "install", "--", model]
    assert machine.run(*line, check=False).returncode == 1
    status = machine.run(*COMMAND, "service", "status", check=False)
    assert status.returncode == 6
    assert "with 3: the model cannot be served" in status.stdout
    assert machine.show(SERVICE, "NRestarts") == "0"
    isotherm(machine, "service", "uninstall", "--purge")
    assert kept(machine) == ""
