"""Commands that are called from a terminal."""

import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import termios
import threading
from pathlib import Path

import pytest
from support import tiny
from support.daemon_process import COMMAND, PATIENCE_S, environment

SERVE = (*COMMAND, "serve", "tiny.gguf", "--port", "0", "--threads", "2", "--no-pack-cache")


def test_the_log_of_a_daemon_that_was_started_in_a_terminal_is_plain_text(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    line = [*COMMAND, "serve", "missing.gguf", "--port", "0", "--background"]
    colourful = environment(tmp_path) | {"TERM": "xterm-256color"}
    colourful.pop("NO_COLOR", None)
    done = subprocess.run(line, env=colourful, stdin=theirs, stdout=theirs, stderr=theirs, timeout=PATIENCE_S)
    shown = os.read(ours, 10_000).decode()
    os.close(ours)
    os.close(theirs)
    (log,) = (tmp_path / "state" / "isotherm").glob("*.log")
    assert done.returncode == 3
    assert log.read_text() == "isotherm: missing.gguf: no such file or folder; check the path (nothing is downloaded)\n"
    assert shown.count("no such file") == 1
    assert "\x1b[31m" in shown


@pytest.mark.parametrize("ignored", [False, True], ids=["", "nohup"])
def test_a_closed_terminal_ends_the_daemon_in_order(tmp_path: Path, ignored: bool) -> None:
    tiny.write_gguf(tmp_path / "tiny.gguf", "qwen3_moe", "Q4_0")
    ours, theirs = pty.openpty()

    def take_the_terminal() -> None:
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
        if ignored:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with subprocess.Popen(
        SERVE,
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=take_the_terminal,
    ) as process:
        os.close(theirs)
        shown = b""
        while b"/v1" not in shown:
            shown += os.read(ours, 10_000)
        reader = threading.Thread(target=read_out, args=(ours,))
        reader.start()
        process.send_signal(signal.SIGHUP)
        if ignored:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
            process.terminate()
        assert process.wait(PATIENCE_S) == 0
    reader.join(PATIENCE_S)
    os.close(ours)


def read_out(terminal: int) -> None:
    with contextlib.suppress(OSError):  # its other side is closed
        while os.read(terminal, 10_000):
            pass
