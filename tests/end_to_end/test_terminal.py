"""Commands that are called from a terminal."""

import os
import pty
import subprocess
from pathlib import Path

from support.daemon_process import COMMAND, PATIENCE_S, environment


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
