"""What stands in the units, and what systemd itself says of them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from isotherm.daemon.cli.output import NO_RESTART, ExitCode
from isotherm.daemon.service import reach
from isotherm.daemon.service.systemctl import ServiceError
from isotherm.daemon.service.unit import SERVICE, SOCKET, ServiceUnit, socket_text, word

ANALYZE = shutil.which("systemd-analyze")
needs_analyze = pytest.mark.skipif(ANALYZE is None, reason="there is no systemd-analyze on this machine")
CASES: dict[str, dict[str, Any]] = {
    "system": {"scope": "system"},
    "run as a user": {"scope": "system", "run_as": "daemon"},
    "with a socket": {"scope": "system", "socket": True},
    "odd names": {"scope": "system", "command": (sys.executable, "serve", 'a "b" 100% $HOME\\x', "--port=1")},
    "in a home": {"scope": "system", "readable": (Path("/") / "home" / "a b:c" / "100%", Path("/") / "root" / "x")},
    "of a user": {"scope": "user"},
}


def unit(**changes: Any) -> ServiceUnit:
    values = {"command": (sys.executable, "-m", "isotherm.daemon.cli", "serve")}
    return ServiceUnit(**values | {"no_restart": {code.value: code.cause for code in NO_RESTART}} | changes)


def settings(text: str) -> dict[str, list[str]]:
    """Values by key, in order."""
    found: dict[str, list[str]] = {}
    for key, value in re.findall(r"^(\w+)=(.*)$", text, re.M):
        found.setdefault(key, []).append(value)
    return found


def test_a_system_unit_says_ready_itself_and_keeps_files_where_systemd_says() -> None:
    found = settings(unit(scope="system").text())
    assert found["Type"] == ["notify"]
    assert found["DynamicUser"] == ["yes"]
    assert found["StateDirectory"] == found["CacheDirectory"] == ["isotherm"]
    assert found["WantedBy"] == ["multi-user.target"]
    assert "User" not in found and "Requires" not in found and "BindReadOnlyPaths" not in found


def test_a_unit_of_a_user_has_no_setting_that_takes_root() -> None:
    found = settings(unit(scope="user").text())
    assert found["WantedBy"] == ["default.target"]
    takes_root = {
        "DynamicUser",
        "User",
        "StateDirectory",
        "PrivateUsers",
        "ProtectSystem",
        "ProtectHome",
        "DeviceAllow",
    }
    assert not takes_root & set(found)
    assert found["NoNewPrivileges"] == ["yes"]


def test_the_time_to_end_is_longer_than_the_drain() -> None:
    from isotherm.daemon.config import Config

    assert int(settings(unit(scope="system").text())["TimeoutStopSec"][0]) > Config().drain_s


def test_no_restart_where_a_restart_mends_nothing() -> None:
    found = settings(unit(scope="system").text())
    assert found["Restart"] == ["on-failure"]
    codes = {int(code) for code in found["RestartPreventExitStatus"][0].split()}
    assert codes == {ExitCode.USAGE, ExitCode.MODEL, ExitCode.MEMORY}


@pytest.mark.parametrize("scope", ["system", "user"])
def test_every_field_is_filled_in(scope: Any) -> None:
    text = unit(scope=scope).text() + socket_text("127.0.0.1:8440")
    assert re.findall(r"@[A-Z_]+@|^\w+\|", text, re.M) == []


def test_a_unit_with_a_socket_does_not_start_without_it() -> None:
    found = settings(unit(scope="system", socket=True).text())
    assert found["Requires"] == [SOCKET]
    assert found["After"] == ["network.target", SOCKET]


@pytest.mark.parametrize(
    ("argument", "written"),
    [
        ("--port=8440", "--port=8440"),
        ("my model.gguf", '"my model.gguf"'),
        ("100%", '"100%%"'),
        ("$HOME", '"$$HOME"'),
        ('a"b\\c', '"a\\"b\\\\c"'),
        ("", '""'),
    ],
)
def test_arguments_mean_themselves(argument: str, written: str) -> None:
    assert word(argument) == written


def analyze(folder: Path, texts: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    for name, text in texts.items():
        (folder / name).write_text(text)
    line = ["systemd-analyze", *arguments, *(str(folder / name) for name in texts)]
    return subprocess.run(line, capture_output=True, text=True, env={**os.environ, "XDG_RUNTIME_DIR": str(folder)})


@needs_analyze
@pytest.mark.parametrize("case", CASES)
def test_systemd_has_nothing_against_the_units(tmp_path: Path, case: str) -> None:
    values = CASES[case]
    texts = {SERVICE: unit(**values).text()} | ({SOCKET: socket_text("8440")} if values.get("socket") else {})
    flags = ("--user",) if values["scope"] == "user" else ()
    done = analyze(tmp_path, texts, *flags, "verify", "--man=no", "--recursive-errors=no")
    said = [line for line in done.stderr.splitlines() if "isotherm" in line]
    assert (done.returncode, said) == (0, [])


@needs_analyze
def test_what_systemd_refuses_is_seen(tmp_path: Path) -> None:
    text = unit(scope="system").text().replace("Type=notify", "Type=nonsense")
    done = analyze(tmp_path, {SERVICE: text}, "verify", "--man=no", "--recursive-errors=no")
    assert "nonsense" in done.stderr


@needs_analyze
@pytest.mark.parametrize("case", ["system", "run as a user", "in a home"])
def test_the_exposure_of_a_service_of_the_system_is_below_2(tmp_path: Path, case: str) -> None:
    done = analyze(
        tmp_path, {SERVICE: unit(**CASES[case]).text()}, "security", "--offline=yes", "--threshold=20"
    )  # 2.0
    assert done.returncode == 0, done.stdout[-200:]


def test_only_what_the_sandbox_hides_is_bound_and_nothing_twice() -> None:
    home = Path("/") / "home"
    paths = [Path("/usr/lib"), home / "a/isotherm/.venv", home / "a/isotherm", home / "a/models"]
    assert reach.hidden(paths) == [home / "a/isotherm", home / "a/models"]


def test_linked_models_are_needed_where_they_really_lie(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "blobs/abc").write_bytes(b"")
    model = tmp_path / "snapshot/model.gguf"
    model.symlink_to("../blobs/abc")
    assert {tmp_path / "snapshot", tmp_path / "blobs"} <= set(reach.needs([model]))
    assert {tmp_path / "snapshot", tmp_path / "blobs"} <= set(reach.needs([tmp_path / "snapshot"]))


def test_what_all_may_read_needs_no_user_of_its_own(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "file").chmod(0o644)
    assert reach.user_for([tmp_path, tmp_path / "file"]) is None


def test_what_only_its_owner_may_read_is_read_as_him(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr(reach.pwd, "getpwuid", lambda uid: type("Entry", (), {"pw_name": "ada"}))
    assert reach.user_for([tmp_path]) == "ada"


def test_what_only_root_may_read_is_refused_with_what_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr(reach.pwd, "getpwuid", lambda uid: type("Entry", (), {"pw_name": "root"}))
    with pytest.raises(ServiceError, match=r"chmod -R o\+rX.*--run-as"):
        reach.user_for([tmp_path])
