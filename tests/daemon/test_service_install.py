"""Installing, bringing up to date and removing, in a folder that stands for /, beside a systemd that only listens."""

from pathlib import Path

import pytest
from isotherm.daemon.cli import service as cli
from isotherm.daemon.cli.output import ExitCode
from isotherm.daemon.service import installation as module
from isotherm.daemon.service.condition import condition
from isotherm.daemon.service.installation import Installation
from isotherm.daemon.service.systemctl import ServiceError, Systemctl
from isotherm.daemon.service.unit import SERVICE, SOCKET
from support.cli import run
from support.fake_systemd import FakeSystemd

SAMPLE = "[server]\n#port = 8440\n"
CONFIG = "etc/isotherm/config.toml"
TEXTS = {SERVICE: "[Service]\nExecStart=/bin/true\n"}
BOTH = TEXTS | {SOCKET: "[Socket]\nListenStream=1\n"}


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSystemd:
    monkeypatch.setattr(module.Installation, "_verify", lambda self, units: None)
    return FakeSystemd(tmp_path / "bin", monkeypatch)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root/etc").mkdir(parents=True)
    return tmp_path / "root"


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def install(root: Path, texts: dict[str, str] = TEXTS, *, start: bool = True, force: bool = False) -> list[Path]:
    return Installation("system", root).install(texts, SAMPLE, start=start, force=force)


def test_install_writes_the_unit_and_has_systemd_start_it(root: Path, systemd: FakeSystemd) -> None:
    install(root)
    assert files(root) == [CONFIG, f"etc/systemd/system/{SERVICE}"]
    assert systemd.calls() == ["daemon-reload", f"enable {SERVICE}", f"restart --no-block {SERVICE}"]


def test_no_start_leaves_a_running_service_alone(root: Path, systemd: FakeSystemd) -> None:
    install(root, start=False)
    assert systemd.calls() == ["daemon-reload", f"enable {SERVICE}"]


def test_with_a_socket_only_that_starts_by_itself(root: Path, systemd: FakeSystemd) -> None:
    install(root, BOTH)
    stop = [f"enable {SOCKET}", f"disable {SERVICE}", f"stop {SERVICE}", f"restart --no-block {SOCKET}"]
    assert systemd.calls() == ["daemon-reload", *stop]


def test_installing_again_changes_nothing_but_what_differs(root: Path, systemd: FakeSystemd) -> None:
    install(root)
    before = (root / f"etc/systemd/system/{SERVICE}").read_bytes()
    assert install(root) == []
    assert (root / f"etc/systemd/system/{SERVICE}").read_bytes() == before
    assert len(install(root, {SERVICE: "[Service]\nExecStart=/bin/false\n"})) == 1
    assert files(root) == [CONFIG, f"etc/systemd/system/{SERVICE}"]


def test_installing_without_the_socket_removes_an_earlier_one(root: Path, systemd: FakeSystemd) -> None:
    install(root, BOTH)
    systemd.calls()
    install(root)
    assert files(root) == [CONFIG, f"etc/systemd/system/{SERVICE}"]
    assert systemd.calls()[0] == f"disable --now {SOCKET}"


def test_removal_leaves_nothing_behind(root: Path, systemd: FakeSystemd) -> None:
    install(root, BOTH)
    systemd.calls()
    Installation("system", root).uninstall(purge=True, force=False)
    assert files(root) == []
    end = ["daemon-reload", f"reset-failed {SERVICE} {SOCKET}"]
    assert systemd.calls() == [f"disable --now {SERVICE} {SOCKET}", *end]


@pytest.mark.parametrize(
    ("purge", "left"), [(True, []), (False, ["var/cache/isotherm/k", "var/lib/private/isotherm/s"])]
)
def test_what_the_service_has_kept_goes_only_when_asked(
    root: Path, systemd: FakeSystemd, purge: bool, left: list[str]
) -> None:
    for name in ("var/lib/private/isotherm/s", "var/cache/isotherm/k"):
        (root / name).parent.mkdir(parents=True)
        (root / name).touch()
    (root / "var/lib/isotherm").symlink_to("private/isotherm")
    install(root)
    Installation("system", root).uninstall(purge=purge, force=False)
    assert files(root) == left
    assert (root / "var/lib/isotherm").is_symlink() != purge


def test_what_was_kept_can_be_removed_later(root: Path, systemd: FakeSystemd) -> None:
    install(root)
    (root / "var/cache/isotherm").mkdir(parents=True)
    installation = Installation("system", root)
    installation.uninstall(purge=False, force=False)
    assert installation.kept() == [root / "var/cache/isotherm"]
    assert installation.uninstall(purge=True, force=False) == [root / "var/cache/isotherm"]
    with pytest.raises(ServiceError, match="no service is installed"):
        installation.uninstall(purge=True, force=False)


def test_a_users_removal_names_what_it_keeps(
    systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("CONFIG", "CACHE", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    Installation("user").install(TEXTS, SAMPLE, start=True, force=False)
    (tmp_path / "CACHE/isotherm").mkdir(parents=True)
    assert f"kept {tmp_path / 'CACHE/isotherm'}, which" in run("service", "uninstall", "--user").stdout
    assert f"removed {tmp_path / 'CACHE/isotherm'}" in run("service", "uninstall", "--user", "--purge").stdout
    assert files(tmp_path / "CACHE") == files(tmp_path / "CONFIG") == []


@pytest.mark.parametrize("force", [False, True])
def test_a_unit_of_somebody_else_is_neither_replaced_nor_removed(root: Path, systemd: FakeSystemd, force: bool) -> None:
    path = root / f"etc/systemd/system/{SERVICE}"
    path.parent.mkdir(parents=True)
    path.write_text("[Service]\nExecStart=/bin/sleep\n")
    with pytest.raises(ServiceError, match="was not written by isotherm"):
        install(root, force=force)
    with pytest.raises(ServiceError, match="was not written by isotherm"):
        Installation("system", root).uninstall(purge=True, force=force)
    assert path.read_text() == "[Service]\nExecStart=/bin/sleep\n"
    assert systemd.calls() == []


def test_a_unit_that_was_changed_goes_only_by_force(root: Path, systemd: FakeSystemd) -> None:
    path = install(root)[0]
    path.write_text(path.read_text() + "Nice=5\n")
    with pytest.raises(ServiceError, match=r"was changed by hand.*--force"):
        install(root)
    with pytest.raises(ServiceError, match=r"was changed by hand.*--force"):
        Installation("system", root).uninstall(purge=False, force=False)
    assert path.read_text().endswith("Nice=5\n")
    install(root, force=True)
    assert "Nice=5" not in path.read_text()


def test_drop_ins_of_others_stay_and_are_told_of(root: Path, systemd: FakeSystemd) -> None:
    install(root)
    drop_in = root / f"etc/systemd/system/{SERVICE}.d/mine.conf"
    drop_in.parent.mkdir()
    drop_in.write_text("[Service]\n")
    installation = Installation("system", root)
    installation.uninstall(purge=True, force=False)
    assert files(root) == [str(drop_in.relative_to(root))]
    assert installation.left() == [drop_in.parent]


def test_a_configuration_that_was_changed_is_kept_by_every_install_and_removal(
    root: Path, systemd: FakeSystemd
) -> None:
    install(root)
    (root / CONFIG).write_text("[server]\nport = 1\n")
    install(root)
    installation = Installation("system", root)
    installation.uninstall(purge=True, force=True)
    assert (root / CONFIG).read_text() == "[server]\nport = 1\n"
    assert installation.left() == [root / CONFIG]


def test_removing_what_is_not_installed_says_so(root: Path, systemd: FakeSystemd) -> None:
    with pytest.raises(ServiceError, match="no service is installed"):
        Installation("system", root).uninstall(purge=False, force=False)


def test_without_rights_sudo_or_user_helps(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "access", lambda path, mode: False)
    with pytest.raises(ServiceError, match=r"sudo.*--user"):
        install(root)


def test_without_systemctl_another_way_is_named(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServiceError, match=r"no systemctl.*serve --background"):
        install(root)
    assert files(root) == []


def test_where_systemd_does_not_run_nothing_is_written(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    FakeSystemd(tmp_path / "bin", monkeypatch, version="echo 'System has not been booted with systemd' >&2; exit 1")
    with pytest.raises(ServiceError, match="has not been booted"):
        install(root)
    assert files(root) == []


def test_a_users_units_lie_in_his_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert Installation("user").file(SERVICE).path == tmp_path / f"systemd/user/{SERVICE}"


SHOWN = {
    "LoadState": "loaded", "ActiveState": "failed", "SubState": "failed", "UnitFileState": "enabled",
    "StateChangeTimestamp": "Tue 2026-12-01 06:00:00 UTC", "Result": "exit-code", "ExecMainCode": "1",
    "ExecMainStatus": "4", "ExecMainExitTimestamp": "Tue 2026-12-01 06:00:00 UTC", "MainPID": "0", "NRestarts": "0",
    "StatusText": "", "NeedDaemonReload": "no", "LimitMEMLOCK": "infinity",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "with 4: it does not fit into memory, Tue"),
        ({"ExecMainStatus": "0", "Result": "success"}, "with 0: ended as it was told to, Tue"),
        ({"ExecMainCode": "3", "ExecMainStatus": "6", "Result": "watchdog"}, "by SIGABRT (no sign of life came"),
        ({"ExecMainCode": "2", "ExecMainStatus": "9", "Result": "oom-kill"}, "by SIGKILL (the memory ran out), Tue"),
        ({"Result": "start-limit-hit"}, "with 4: it does not fit into memory (it failed too often in a row;"),
    ],
    ids=["exit code", "well", "watchdog", "memory", "too often"],
)
def test_the_last_exit_is_told_in_words(systemd: FakeSystemd, changes: dict[str, str], words: str) -> None:
    systemd.show(**SHOWN | changes)
    found = condition(Systemctl("system"), {code: code.cause for code in ExitCode})
    assert found.last_exit is not None and found.last_exit.startswith(words)


def test_a_service_that_never_ended_has_no_last_exit(systemd: FakeSystemd) -> None:
    systemd.show(**SHOWN | {"ExecMainExitTimestamp": "", "Result": "success", "ExecMainCode": "0"})
    assert condition(Systemctl("system"), {}).last_exit is None


def test_status_of_a_service_that_does_not_run_exits_with_6(systemd: FakeSystemd) -> None:
    systemd.show(**SHOWN)
    result = run("service", "status")
    assert result.exit_code == ExitCode.NO_DAEMON
    assert "last exit   with 4: it does not fit into memory" in result.stdout


def test_status_names_what_is_not_installed(systemd: FakeSystemd) -> None:
    systemd.show(**SHOWN | {"LoadState": "not-found"})
    assert "not installed" in run("service", "status").stdout


def test_a_dry_run_prints_the_units_and_asks_nobody(systemd: FakeSystemd, tmp_path: Path) -> None:
    model = tmp_path / "my model.gguf"
    model.touch()
    result = run("service", "install", "--user", "--dry-run", "--socket", "8440", "--", model, "--threads", 2)
    assert result.exit_code == 0, result.stderr
    assert f'serve "{model}" --threads 2\n' in result.stdout
    assert "ListenStream=8440" in result.stdout
    assert systemd.calls() == []


def test_paths_are_whole_since_a_service_starts_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.gguf").touch()
    Path("n.gguf").touch()
    Path("keys").touch()
    line = ["m.gguf", "n.gguf", "--host", "m", "--api-key-file=keys", "--access-log", "-"]
    arguments, models = cli._serve_line(line, "user")
    assert arguments[:2] == [str(tmp_path / "m.gguf"), str(tmp_path / "n.gguf")]
    assert arguments[2:] == ["--host", "m", f"--api-key-file={tmp_path / 'keys'}", "--access-log", "-"]
    assert models == [tmp_path / "m.gguf", tmp_path / "n.gguf"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--", "--no-such-option"), ExitCode.USAGE, "No such option"),
        (("--", "--background"), ExitCode.USAGE, "--background is not for a service"),
        (("--", "missing.gguf"), ExitCode.MODEL, "there is no model missing.gguf"),
        (("--socket", "somewhere"), ExitCode.USAGE, "--socket is 'somewhere'"),
        (("--read", "missing"), ExitCode.FAILURE, "--read missing is no folder"),
    ],
    ids=["option", "background", "model", "socket", "read"],
)
def test_what_could_not_start_is_refused_before_anything_is_written(
    arguments: tuple[str, ...], code: ExitCode, words: str, systemd: FakeSystemd
) -> None:
    result = run("service", "install", "--user", *arguments)
    assert (result.exit_code, words in result.stderr) == (code, True), result.stderr
    assert systemd.calls() == []
