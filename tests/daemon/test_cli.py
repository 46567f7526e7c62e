"""The command line against daemons that are played by a scripted engine."""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import typer
from isotherm.daemon import state
from isotherm.daemon.cli.background import _check_child, open_log
from isotherm.daemon.cli.output import ExitCode, fail
from isotherm.daemon.cli.serve import _kept_for_good
from isotherm.daemon.process_start import process_start
from isotherm.daemon.state import DaemonState, live_daemons, read_state, remove_state, write_state
from support.api_service import make_service, serving
from support.cli import daemon_state, run
from support.held_port import held_port

pytestmark = pytest.mark.usefixtures("own_folders")

DAEMON = asdict(daemon_state())
COMMANDS = ("serve", "chat", "status", "stop", "demo", "bench", "calibrate", "plan", "profile", "simulate")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"Example: isotherm {command}" in result.output or command == "demo"
    assert "Example: isotherm" in result.output


@pytest.mark.parametrize(
    ("arguments", "usage"),
    [
        (("plan", "--help"), "plan [OPTIONS]"),
        (("profile", "-h"), "profile [OPTIONS]"),
        (("plan", "diff", "-h"), "plan diff [OPTIONS]"),
        (("profile", "show", "-h"), "profile show [OPTIONS]"),
        (("plan", "--no-such"), "plan [OPTIONS]"),
    ],
)
def test_usage_is_what_is_typed(arguments: tuple[str, ...], usage: str) -> None:
    assert f" {usage}" in run(*arguments).output


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys, isotherm.daemon.cli.app; heavy = "
        "{'numba', 'numpy', 'torch', 'fastapi', 'uvicorn', 'tokenizers', 'httpx'} & set(sys.modules); "
        "sys.exit(','.join(heavy) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_garbage_is_looked_for_in_what_a_start_makes() -> None:
    before = gc.get_freeze_count()
    with _kept_for_good():
        assert not gc.isenabled()
        kept = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(kept)
    gc.unfreeze()


def test_garbage_is_looked_for_again_after_a_start_that_failed() -> None:
    with pytest.raises(OSError, match="no space"), _kept_for_good():
        raise OSError("no space")
    assert gc.isenabled()
    gc.unfreeze()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("serve", "--threads", 0), "--threads is 0; it must lie between 1 and 1024"),
        (("serve", "--kv-cache", "q8"), "--kv-cache is 'q8'; it must be one of int16, int8, f16, bf16, f32"),
        (("serve", "--log-level", "loud"), "--log-level is 'loud'; it must be one of debug, info, warning, error"),
        (("serve", "--api-key-file", "nowhere"), "--api-key-file nowhere cannot be read"),
        (("bench", "--streams", "1,x"), "--streams is '1,x'; name numbers"),
        (("status", "--url", "http://a:port"), "--url is no address"),
    ],
)
def test_wrong_setting_exits_with_2_and_says_why(arguments: Sequence[object], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == ExitCode.USAGE
    assert words in result.stderr


def test_a_failure_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Some causes are the many lines of a library's error."""
    with pytest.raises(typer.Exit):
        fail("broken\nfor a reason", ExitCode.MODEL)
    assert capsys.readouterr().err == "isotherm: broken for a reason\n"


def test_port_in_use_is_noticed_before_the_model_is_opened() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        result = run("serve", "missing.gguf", "--port", other.getsockname()[1])
    assert result.exit_code == ExitCode.ADDRESS
    assert "Address already in use; choose another --port" in result.stderr


def test_second_daemon_of_a_port_is_refused_with_the_first_one_named() -> None:
    write_state(daemon_state(phase="loading"))
    result = run("serve", "missing.gguf", "--port", 8440)
    assert result.exit_code == ExitCode.ADDRESS
    assert f"taken by your daemon {os.getpid()}" in result.stderr


def test_unknown_host_is_an_address_error() -> None:
    result = run("serve", "missing.gguf", "--host", "no-such-host.invalid")
    assert result.exit_code == ExitCode.ADDRESS


@pytest.mark.parametrize("command", [("status",), ("chat", "--once", "hi")])
def test_without_a_daemon_the_remedy_is_named(command: Sequence[str]) -> None:
    with held_port() as port:
        result = run(*command, "--url", f"http://127.0.0.1:{port}")
    assert result.exit_code == ExitCode.NO_DAEMON
    assert "start one by: isotherm serve --background" in result.stderr


def test_daemon_that_still_loads_is_named_as_such() -> None:
    with held_port() as port:
        url = f"http://127.0.0.1:{port}"
        write_state(daemon_state(port=port, url=url, stage="packing weights", done=1, total=4))
        result = run("status")
    assert result.exit_code == ExitCode.NO_DAEMON
    assert f"the daemon at {url} is still loading m (packing weights 25%)" in result.stderr


@pytest.mark.parametrize(
    ("sig", "words"), [(signal.SIGBUS, "SIGBUS: a file was cut"), (signal.SIGUSR1, "ended by SIGUSR1")]
)
def test_signal_that_ended_a_loading_daemon_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sig: signal.Signals, words: str
) -> None:
    (tmp_path / "log").write_text("packing weights\n")
    pid = os.posix_spawnp("sleep", ["sleep", "60"], os.environ)
    os.kill(pid, sig)
    with pytest.raises(typer.Exit) as ended:
        while True:
            _check_child(pid, tmp_path / "log")
    assert ended.value.exit_code == 128 + sig
    assert words in capsys.readouterr().err


def test_a_reason_that_the_daemon_has_told_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text("packing weights\nisotherm: too large\n")
    pid = os.posix_spawnp("sh", ["sh", "-c", "exit 4"], os.environ)
    with pytest.raises(typer.Exit) as ended:
        while True:
            _check_child(pid, tmp_path / "log")
    assert ended.value.exit_code == ExitCode.MEMORY
    assert capsys.readouterr().err == f"isotherm: too large (log: {tmp_path / 'log'})\n"


def test_the_log_of_the_run_before_is_kept(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a crash\n")
    os.close(open_log(tmp_path / "log"))
    assert (tmp_path / "log.1").read_text() == "a crash\n"
    assert (tmp_path / "log").read_text() == ""


@pytest.mark.parametrize("background", [(), ("--background",)])
def test_state_folder_that_cannot_be_written_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, background: tuple[str, ...]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    result = run("serve", "missing.gguf", "--port", 0, *background)
    assert result.exit_code == ExitCode.FAILURE
    assert "set XDG_STATE_HOME" in result.stderr


def test_commands_find_the_only_daemon() -> None:
    with serving(make_service("Hi")) as port:
        write_state(daemon_state(port=port, url=f"http://127.0.0.1:{port}", phase="ready"))
        assert run("chat", "--once", "hello").stdout == "Hi\n"


def test_commands_ask_which_of_several_daemons() -> None:
    write_state(daemon_state(port=1, url="http://a"))
    write_state(daemon_state(port=2, url="http://b"))
    for command, words in ((("status",), "--url http://a or http://b"), (("stop",), "--port 1 or 2")):
        result = run(*command)
        assert result.exit_code == ExitCode.USAGE
        assert words in result.stderr


def sleeper() -> tuple[subprocess.Popen[bytes], DaemonState]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    return process, daemon_state(pid=process.pid, started=process_start(process.pid))


def test_stop_ends_the_process_of_the_state_file() -> None:
    process, running = sleeper()
    write_state(running)
    result = run("stop")
    assert (result.exit_code, result.stdout) == (0, "stopped http://127.0.0.1:8440\n")
    assert process.wait() == -15


STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: None)
print(flush=True)
time.sleep(60)  # a signal that has a handler does not cut it short
"""


@pytest.mark.parametrize(("drain_s", "patient"), [(0.0, False), (60.0, True)])
def test_stop_waits_as_long_as_open_requests_have(
    monkeypatch: pytest.MonkeyPatch, drain_s: float, patient: bool
) -> None:
    monkeypatch.setattr("isotherm.daemon.cli.stop._TIDY_S", 0.5)
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        write_state(daemon_state(pid=process.pid, started=process_start(process.pid), drain_s=drain_s))
        end = threading.Timer(2.0, process.kill)
        if patient:
            end.start()
        result = run("stop")
        end.cancel()
        process.kill()
    assert (result.exit_code == 0) is patient
    assert patient or f"kill -9 {process.pid}" in result.stderr


@pytest.mark.parametrize("change", [{"pid": 2**22 + 1}, {"started": "another boot:1"}])
def test_stop_leaves_a_process_that_is_not_the_daemon(change: dict[str, Any]) -> None:
    write_state(daemon_state(**change))
    assert read_state(8440) is None
    result = run("stop")
    assert result.exit_code == ExitCode.NO_DAEMON
    assert "no daemon of yours runs" in result.stderr


@pytest.mark.parametrize(
    "content",
    [
        b'{"pid": 1, "colour": "red"}',
        b"[" * 100_000,
        b"\xff\xfe",
        b"",
        *(
            json.dumps(DAEMON | change).encode()
            for change in (
                {"pid": "1"},
                {"pid": -1},
                {"pid": 2**70},
                {"started": 1.0},
                {"drain_s": "x"},
                {"port": "x"},
                {"url": 5},
            )
        ),
    ],
    ids=range(11),  # contents name this process, whose number differs between workers
)
def test_what_is_no_state_file_is_no_daemon(tmp_path: Path, content: bytes) -> None:
    write_state(daemon_state())
    (tmp_path / "state" / "isotherm" / "serve-8440.json").write_bytes(content)
    assert live_daemons() == []


def test_a_folder_in_place_of_a_state_file_is_no_daemon(tmp_path: Path) -> None:
    (tmp_path / "state" / "isotherm" / "serve-8440.json").mkdir(parents=True)
    assert live_daemons() == []


def test_the_state_of_a_later_daemon_is_not_removed() -> None:
    process, later = sleeper()
    write_state(later)
    remove_state(8440)
    assert read_state(8440) == later
    process.kill()
    process.wait()
    remove_state(8440)
    assert not state.state_file(8440).exists()


def test_a_state_that_cannot_be_written_leaves_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space"):
        write_state(daemon_state())
    assert list(state.state_folder().iterdir()) == []


def test_state_survives_the_way_through_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    written = daemon_state(phase="loading", stage="packing weights", done=3, total=9)
    write_state(written)
    assert read_state(8440) == written
