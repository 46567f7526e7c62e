"""From a clone in somebody's home to a service of the system or of his own, brought up to date, and gone, under a real
systemd: what `make service` and `isotherm service --user` do there, and what is left of it."""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import tiny
from support.fresh_clone import copy_compiled
from support.own_systemd import OwnSystemd, booted, missing

SERVICE = "isotherm.service"
PORT = 8440  # of its own network
OWNER = "daemon"  # whose home it is; every system has this user
HOME = Path("/") / "run/user/isotherm-test"  # ProtectHome= hides it as it does /home
FOLDERS = ("/etc", "/var/lib", "/var/cache", str(HOME))
# Of root, as a user: others may not reach an interpreter that lies in a home.
MANAGER = f"""[Service]
Type=notify
Delegate=yes
Environment=HOME={HOME} XDG_RUNTIME_DIR={HOME}/run
ExecStart=/usr/lib/systemd/systemd --user
StandardOutput=append:/run/manager.log
StandardError=append:/run/manager.log
"""
CLONE = """
import sys
from pathlib import Path
from support.fresh_clone import fresh_clone
fresh_clone(Path(sys.argv[1]))
"""


@dataclass(frozen=True)
class Home:
    """machine: where it is seen. model: a small one."""

    machine: OwnSystemd
    clone: Path
    model: Path

    def make(self, *arguments: object) -> str:
        return self.machine.run("make", "--no-print-directory", "-C", self.clone, *arguments).stdout

    def as_user(self, *command: object) -> str:
        return self.machine.run("env", f"HOME={HOME}", f"XDG_RUNTIME_DIR={HOME}/run", *command).stdout

    def service(self, *arguments: object) -> str:
        """Of a user's own."""
        return self.as_user(self.clone / ".venv/bin/isotherm", "service", *arguments)

    def file(self, path: object, text: str) -> None:
        script = 'mkdir -p "$(dirname "$1")" && printf "%s" "$2" > "$1"'
        self.machine.run("sh", "-c", script, "sh", path, text)

    def tree(self) -> set[str]:
        found = self.machine.tree(*FOLDERS)
        return {path for path in found if "__pycache__" not in path or not path.startswith(str(self.clone))}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    reason = missing() or (None if shutil.which("make") else "there is no make on this machine")
    if reason is not None:
        pytest.skip(reason)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MAKEFLAGS")}
    with booted(tmp_path_factory.mktemp("systemd"), environment | {"COLUMNS": "200"}) as machine:
        if isinstance(machine, str):
            pytest.skip(machine)
        # Its /run is this process's by way of its first process.
        inside = Path(f"/proc/{machine.pid}/root") / HOME.relative_to("/")
        inside.mkdir(parents=True)
        search = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        machine.run("env", f"PYTHONPATH={search}", sys.executable, "-c", CLONE, HOME / "isotherm")
        tiny.write_gguf(inside / "tiny-moe.gguf", "mixtral", "Q4_0", max_position_embeddings=16384)
        copy_compiled(inside / "compiled", HOME / "isotherm")
        for folder in ("run", ".cache", ".config/systemd/user", ".local/state"):  # which all programs share
            (inside / folder).mkdir(parents=True)
        machine.run("chown", "-R", OWNER, HOME)
        machine.run("chmod", "0700", HOME, HOME / "isotherm", HOME / "run")
        yield Home(machine, HOME / "isotherm", HOME / "tiny-moe.gguf")


ASK = f"""
import httpx, sys
body = {{"messages": [{{"role": "user", "content": "the cat"}}], "max_tokens": int(sys.argv[1]), "ignore_eos": True}}
answer = httpx.post("http://127.0.0.1:{PORT}/v1/chat/completions", json=body, timeout=100, trust_env=False)
print(answer.json()["usage"]["completion_tokens"])
"""
# One stop: the request that is open takes longer than the unit's time to stop, so the daemon has to ask for more.
STOP = f"""
{sys.executable} -c "$1" 9000 > /run/answer & asked=$!
while ! {sys.executable} -c "$2"; do sleep 0.05; done
systemctl stop {SERVICE}
wait $asked; cat /run/answer
"""
BUSY = f"""
import httpx, sys
text = httpx.get("http://127.0.0.1:{PORT}/metrics", trust_env=False).text
sys.exit(not any(line.startswith("isotherm_requests_running ") and line[-2:] != " 0" and line[-4:] != " 0.0"
                 for line in text.splitlines()))
"""


def test_two_commands_install_the_service_and_its_removal_leaves_nothing(home: Home) -> None:
    machine = home.machine
    drop_in, config = f"/etc/systemd/system/{SERVICE}.d/own.conf", "/etc/isotherm/config.toml"
    home.file(drop_in, "[Service]\nTimeoutStopSec=2\nStandardError=append:/run/isotherm.log\n")
    before = home.tree()
    machine.run("mkdir", "-p", "/var/cache/isotherm")
    machine.run("cp", "-r", HOME / "compiled/kernels", "/var/cache/isotherm")

    told = home.make("service", f"MODEL={home.model}", f"PORT={PORT}")
    assert f"serving tiny-moe at http://127.0.0.1:{PORT}/v1" in told
    assert "active (running)" in told
    assert told.partition("> Why is the sky blue?")[2].strip()  # an answer
    program = home.clone / ".venv/bin/isotherm"
    first = json.loads(machine.run(program, "service", "status", "--json").stdout)
    assert (first["active"], first["at_boot"], first["restarts"]) == (True, True, 0)
    assert machine.run("stat", "-c", "%U", f"/proc/{first['pid']}").stdout.strip() == OWNER

    # An update, of a unit that another version has written, over settings of the administrator's own.
    home.file(config, "[server]\ndrain_s = 300.0\n")
    unit = f"/etc/systemd/system/{SERVICE}"
    machine.run("sed", "-i", "1s/version [^,]*/version 0.0.1/", unit)
    assert "by version 0.0.1; this is" in machine.run(program, "service", "status").stdout
    machine.run(program, "service", "install", "--", home.model, "--port", PORT, "--threads", 2)
    second = json.loads(machine.run(program, "service", "status", "--json").stdout)
    assert second["pid"] != first["pid"] and second["unit_version"] == second["version"]
    assert "--threads\0002\000" in machine.run("cat", f"/proc/{second['pid']}/cmdline").stdout
    assert machine.show(SERVICE, "TimeoutStopUSec") == "2s"  # the drop-in is still his
    assert machine.run("cat", config).stdout == "[server]\ndrain_s = 300.0\n"

    assert machine.run("sh", "-c", STOP, "sh", ASK, BUSY).stdout.strip() == "9000"
    assert machine.show(SERVICE, "Result") == "success"
    told = home.make("service-remove")
    assert "kept /var/cache/isotherm, which the service wrote" in told and f"left {config}" in told
    machine.run(program, "service", "uninstall", "--purge")
    assert home.tree() - {"/var/lib/private", "/var/cache/private"} == before | {"/etc/isotherm", config}


def test_a_service_of_a_user_runs_is_reloaded_and_leaves_nothing(home: Home) -> None:
    machine = home.machine
    home.file("/etc/systemd/system/manager.service", MANAGER)
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", "manager.service")
    before = home.tree()
    home.as_user("mkdir", "-p", HOME / ".cache/isotherm")
    home.as_user("cp", "-r", HOME / "compiled/kernels", HOME / ".cache/isotherm")

    told = home.service("install", "--user", "--", home.model, "--port", PORT, "--threads", 2)
    assert f"serving tiny-moe at http://127.0.0.1:{PORT}/v1" in told
    assert "it ends with your last login" in told
    assert machine.run(sys.executable, "-c", ASK, 3).stdout.strip() == "3"
    first = json.loads(home.service("status", "--user", "--json"))
    assert (first["active"], first["at_boot"]) == (True, True)
    home.as_user("systemctl", "--user", "reload", SERVICE)
    words = "systemctl", "--user", "show", SERVICE, "--value", "--property=StatusText"
    assert "reloaded; serving tiny-moe" in home.as_user(*words)
    assert json.loads(home.service("status", "--user", "--json"))["pid"] == first["pid"]
    home.as_user("systemctl", "--user", "stop", SERVICE)
    home.service("uninstall", "--user", "--purge")
    assert home.tree() == before
