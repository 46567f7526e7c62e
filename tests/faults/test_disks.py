"""Disks that are full, or have become read-only, under a daemon that serves: it says so, and serves on."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from support import tiny
from support.api_service import wait_until
from support.daemon_process import Daemon, command, launched, wait_for_url

# In a namespace of mounts of its own.
INSIDE = 'mount -t tmpfs -o size=$1 disk "$2" && mkdir "$2/state" && shift 2 && exec "$@"'
QUESTION = {"prompt": "the cat", "max_tokens": 24, "temperature": 0, "ignore_eos": True}

pytestmark = pytest.mark.skipif(
    subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0,
    reason="disks of its own are mounted by root only, where the machine allows namespaces",
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    tiny.write_gguf(path, "qwen3_moe", "Q4_0")
    return path


@contextmanager
def serving_on_a_disk(folder: Path, model: Path, size: str, *arguments: object) -> Iterator[tuple[Daemon, Path]]:
    """A daemon whose state and cache lie on a disk of some size, and that disk as it is seen from here."""
    disk = folder / "disk"
    disk.mkdir()
    prefix = ("unshare", "-m", "sh", "-c", INSIDE, "sh", size, str(disk))
    os.symlink(disk / "state", folder / "state")
    with launched(folder, model, *arguments, cache=disk / "cache", prefix=prefix) as (process, output):
        yield Daemon(process, wait_for_url(process, output), output), Path(f"/proc/{process.pid}/root{disk}")


def ask(daemon: Daemon) -> str:
    answer = httpx.post(f"{daemon.url}/v1/completions", json=QUESTION, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


def fill(disk: Path) -> None:
    with (disk / "full").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    assert os.statvfs(disk).f_bavail == 0


def test_a_disk_that_gets_full(tmp_path: Path, model: Path) -> None:
    log = tmp_path / "disk" / "access.log"
    with serving_on_a_disk(tmp_path, model, "4m", "--access-log", log) as (daemon, disk):
        right = ask(daemon)
        fill(disk)
        assert [ask(daemon) for _ in range(3)] == [right] * 3
        assert httpx.get(f"{daemon.url}/health", trust_env=False).status_code == 200
        daemon.process.send_signal(signal.SIGHUP)
        (disk / "full").unlink()
        assert ask(daemon) == right
        wait_until(lambda: '"/v1/completions"' in (disk / "access.log").read_text())  # it comes after the answer
        fill(disk)
        assert ask(daemon) == right
        assert daemon.stop() == 0
    told = daemon.output.read_text()
    assert "Traceback" not in told
    assert "No space left on device" in told


def test_a_disk_that_becomes_read_only(tmp_path: Path, model: Path) -> None:
    with serving_on_a_disk(tmp_path, model, "64m") as (daemon, _):
        right = ask(daemon)
        mount = ["mount", "-o", "remount,ro", str(tmp_path / "disk")]
        subprocess.run(["nsenter", "-m", "-t", str(daemon.process.pid), *mount], check=True)
        assert [ask(daemon) for _ in range(3)] == [right] * 3
        assert daemon.stop() == 0
    told = daemon.output.read_text()
    assert "Traceback" not in told
    assert "Read-only file system" in told


def test_a_state_folder_that_cannot_be_written_is_told_at_the_start(tmp_path: Path, model: Path) -> None:
    (tmp_path / "state").write_text("a file in its place")
    done = command(tmp_path, "serve", model, "--port", 0, "--background")
    assert done.returncode == 1
    assert "XDG_STATE_HOME" in done.stderr and "Traceback" not in done.stderr
