"""A real daemon as a process of its own, on a tiny model and a free port."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
from isotherm.cpu_kernels.jit import cache_folder as kernel_folder

COMMAND = (sys.executable, "-m", "isotherm.daemon.cli")
# Such a daemon keeps packed weights however full the disk is.
HOARD = "from isotherm.experts import store; store.SPARE = 0; from isotherm.daemon.cli import main; main()"
HOARDER = (sys.executable, "-c", HOARD)
PATIENCE_S = 240.0  # the first start on a machine compiles the kernels


@dataclass
class Daemon:
    """A running daemon. `output` is where its standard output and error go."""

    process: subprocess.Popen[bytes]
    url: str
    output: Path

    def stop(self, sig: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the exit code."""
        self.process.send_signal(sig)
        return self.process.wait(PATIENCE_S)

    def metrics(self) -> dict[str, float]:
        """The samples of /metrics by name and labels."""
        # Without certificates, since reading them takes ten times as long as the request.
        lines = httpx.get(f"{self.url}/metrics", timeout=60, trust_env=False, verify=False).text.splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    def wait_for(self, name: str, value: float) -> None:
        """Poll /metrics until a sample has a value."""
        end = time.monotonic() + 30
        while self.metrics()[name] != value:
            assert time.monotonic() < end, f"{name} is {self.metrics()[name]}, not {value}"
            time.sleep(0.02)


def environment(folder: Path) -> dict[str, str]:
    """This environment with state and settings in `folder`; the kernel cache stays where it is."""
    own = {"XDG_STATE_HOME": str(folder / "state"), "XDG_CONFIG_HOME": str(folder / "config")}
    return {**os.environ, **own, "COLUMNS": "200"}


def command(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run one command of isotherm to its end."""
    line = [*COMMAND, *map(str, arguments)]
    return subprocess.run(line, env=environment(folder), capture_output=True, text=True, timeout=PATIENCE_S)


@contextlib.contextmanager
def running(
    folder: Path, model: Path, *arguments: object, cache: Path | None = None, program: str | None = None
) -> Iterator[Daemon]:
    """`isotherm serve` on a free port with two threads; killed at the end if it still runs.

    cache: the folder of its cache, but for kernels; without one it keeps no packed weights. program: what runs in place
    of the command, as Python's text.
    """
    with launched(folder, model, *arguments, cache=cache, program=program) as (process, output):
        yield Daemon(process, wait_for_url(process, output), output)


@contextlib.contextmanager
def launched(
    folder: Path,
    model: Path,
    *arguments: object,
    cache: Path | None = None,
    program: str | None = None,
    prefix: tuple[str, ...] = (),
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The same, not waited for: the process and its output. prefix: of the command line, which has it executed."""
    output = folder / "output"
    started = (*prefix, *((sys.executable, "-c", program) if program else HOARDER if cache else COMMAND))
    line = [*started, "serve", str(model), "--port", "0", "--threads", "2", *map(str, arguments)]
    variables = environment(folder)
    if cache is None:
        line.append("--no-pack-cache")
    else:
        variables |= {"XDG_CACHE_HOME": str(cache), "NUMBA_CACHE_DIR": str(kernel_folder())}
    with output.open("wb") as file:
        process = subprocess.Popen(
            line, env=variables, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )  # away from the terminal of whoever runs the tests, which would say what SIGHUP means
    try:
        yield process, output
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def wait_for_url(process: subprocess.Popen[bytes], output: Path) -> str:
    """Of a daemon, as soon as it is ready."""
    end = time.monotonic() + PATIENCE_S
    while not (found := re.search(r"serving \S+ at (http://\S+)/v1", output.read_text(errors="replace"))):
        assert process.poll() is None, f"the daemon ended with {process.returncode}: {output.read_text()}"
        assert time.monotonic() < end, f"the daemon is not ready: {output.read_text()}"
        time.sleep(0.05)
    return found[1]
