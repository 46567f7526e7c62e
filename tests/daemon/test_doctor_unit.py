"""What `isotherm doctor` says of installed units: faults that are put into one are found, and nothing else is."""

import sys
from pathlib import Path
from typing import Any

import pytest
from isotherm.daemon.cli.output import NO_RESTART
from isotherm.daemon.doctor.finding import Finding
from isotherm.daemon.doctor.patient import Patient
from isotherm.daemon.doctor.unit import unit
from isotherm.daemon.service.unit import SERVICE, SOCKET, ServiceUnit
from isotherm.daemon.service.unit_file import UnitFile
from support.fake_systemd import FakeSystemd

SYSTEM, USER = f"etc/systemd/system/{SERVICE}", f".config/systemd/user/{SERVICE}"
CAUSES = {code.value: code.cause for code in NO_RESTART}
RUNS = {
    "LoadState": "loaded", "ActiveState": "active", "SubState": "running", "UnitFileState": "enabled", "MainPID": "7",
    "StateChangeTimestamp": "", "Result": "success", "ExecMainCode": "0", "ExecMainStatus": "0", "StatusText": "",
    "ExecMainExitTimestamp": "", "NRestarts": "0", "NeedDaemonReload": "no", "LimitMEMLOCK": "infinity",
}  # fmt: skip
FAILED = {"ActiveState": "failed", "SubState": "failed", "Result": "exit-code", "ExecMainCode": "1",
          "ExecMainStatus": "4", "ExecMainExitTimestamp": "Tue"}  # fmt: skip


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSystemd:
    fake = FakeSystemd(tmp_path / "bin", monkeypatch)
    fake.show(**RUNS)
    return fake


def installed(root: Path, name: str = SYSTEM, **values: Any) -> Path:
    """The file of a unit as `install` writes it."""
    command = {"command": (sys.executable, "serve")}
    text = ServiceUnit(**{"scope": "user" if name == USER else "system", "no_restart": CAUSES} | command | values)
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    UnitFile(root / name).write(text.text())
    return root / name


def found(root: Path, **given: Any) -> list[Finding]:
    return [each for each in unit(Patient(root=root, environ={"HOME": str(root)}, **given)) if each.grade != "good"]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"run_as": "daemon", "socket": True},
        {"readable": (Path("/") / "home" / "a b", Path("/") / "home" / "c%")},
        {"command": (sys.executable, "serve", "a $b.gguf")},
    ],
    ids=["plain", "socket", "in a home", "odd names"],
)
def test_a_unit_that_runs_as_it_was_written_has_no_fault(
    tmp_path: Path, systemd: FakeSystemd, values: dict[str, Any]
) -> None:
    installed(tmp_path, **values)
    assert found(tmp_path) == []


def test_where_nothing_is_installed_nothing_is_told(tmp_path: Path, systemd: FakeSystemd) -> None:
    assert list(unit(Patient(root=tmp_path, environ={"HOME": str(tmp_path)}))) == []


@pytest.mark.parametrize(
    ("shown", "grade", "told", "remedy"),
    [
        (FAILED, "fault", "has failed, with 4: it does not fit into memory", "reset-failed isotherm"),
        (FAILED | {"Result": "start-limit-hit"}, "fault", "it failed too often in a row", "journalctl --unit isotherm"),
        ({"NRestarts": "3"}, "advice", "started it again 3 times", "journalctl --unit isotherm"),
        ({"NRestarts": "3", "ActiveState": "activating"}, "fault", "started it again 3 times", "journalctl"),
        ({"NeedDaemonReload": "yes"}, "fault", "has changed since systemd read it", "daemon-reload"),
        ({"LoadState": "not-found"}, "fault", "has changed since systemd read it", "daemon-reload"),
        ({"UnitFileState": "disabled"}, "advice", "does not start with the machine", f"enable {SERVICE}"),
    ],
    ids=["failed", "start limit", "restarted", "restarting", "not read", "never read", "not enabled"],
)
def test_what_systemd_makes_of_a_unit_is_told_with_its_remedy(
    tmp_path: Path, systemd: FakeSystemd, shown: dict[str, str], grade: str, told: str, remedy: str
) -> None:
    installed(tmp_path)
    systemd.show(**RUNS | shown)
    (finding,) = found(tmp_path)
    assert (finding.grade, told in finding.told, remedy in finding.remedy) == (grade, True, True), finding


def test_a_socket_whose_service_has_failed_is_told_of(tmp_path: Path, systemd: FakeSystemd) -> None:
    installed(tmp_path, socket=True)
    systemd.show(**RUNS | FAILED)
    systemd.show_of(SOCKET, **RUNS)
    (finding,) = found(tmp_path)
    assert "its socket goes on listening" in finding.told


@pytest.mark.parametrize("user", [False, True])
@pytest.mark.parametrize("program", ["/gone/isotherm", "/a b/isotherm"])
def test_a_program_that_is_gone_is_found(tmp_path: Path, systemd: FakeSystemd, user: bool, program: str) -> None:
    path = installed(tmp_path, USER if user else SYSTEM, command=(program, "serve"))
    assert found(tmp_path)[0].told == f"{path} starts {program}, which is gone"


def test_a_unit_that_would_be_written_otherwise_today_is_found(tmp_path: Path, systemd: FakeSystemd) -> None:
    path = installed(tmp_path)
    UnitFile(path).write(UnitFile(path).body().replace("WatchdogSec=60", "WatchdogSec=30"))
    (finding,) = found(tmp_path)
    assert (finding.grade, "would write another" in finding.told) == ("advice", True)
    assert "service install" in finding.remedy


@pytest.mark.parametrize(("limit", "told"), [("8388608", ["may lock only 8192 KiB"]), ("unlimited", [])])
def test_what_a_process_may_lock_is_looked_at_where_cards_are_used(
    tmp_path: Path, systemd: FakeSystemd, limit: str, told: list[str]
) -> None:
    installed(tmp_path)
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/limits").write_text(f"Max locked memory         {limit}    {limit}    bytes\n")
    assert found(tmp_path) == []
    findings = found(tmp_path, accelerators=("cuda:0",))
    assert [each.told[len("the service ") :][: len(told[0])] for each in findings] == told


def test_a_service_of_a_user_who_does_not_linger_is_found(tmp_path: Path, systemd: FakeSystemd) -> None:
    installed(tmp_path, USER)
    patient = Patient(root=tmp_path, environ={"HOME": str(tmp_path), "USER": "ada"})
    (finding,) = unit(patient)
    assert (finding.grade, finding.remedy) == ("advice", "sudo loginctl enable-linger ada")
    (tmp_path / "var/lib/systemd/linger").mkdir(parents=True)
    (tmp_path / "var/lib/systemd/linger/ada").touch()
    assert [each.grade for each in unit(patient)] == ["good"]


def test_a_systemd_that_does_not_answer_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeSystemd(tmp_path / "bin", monkeypatch, version="echo 'System has not been booted' >&2; exit 1")
    installed(tmp_path)
    (finding,) = found(tmp_path)
    assert "has not been booted" in finding.told
