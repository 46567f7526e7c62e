"""A real systemd in namespaces of its own: processes, mounts, network and control groups apart from this machine's.

It sees this machine's files, with /etc, /run, /var/lib and /var/cache as layers that are gone with it.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PATIENCE_S = 120.0
_BINARY = next((path for path in ("/usr/lib/systemd/systemd", "/lib/systemd/systemd") if Path(path).exists()), "")
_TARGETS = ("basic", "sysinit", "shutdown", "umount", "final", "sockets", "multi-user", "network", "isotherm-test")
_UNSHARE = ("unshare", "--pid", "--mount", "--uts", "--ipc", "--net", "--cgroup", "--fork", "--kill-child")

# $1: a folder for it. Then the control groups, as pairs of a mount and the group that is to be its root there.
_BOOT = """
set -eu
folder=$1; shift
mount --make-rprivate /
mount -t proc proc /proc
mount -o bind,ro /proc/sys /proc/sys
while [ $# -gt 0 ]; do mount --bind "$2" "$1"; shift 2; done
mount -t tmpfs tmpfs "$folder/layers"
mkdir "$folder/layers/upper" "$folder/layers/work"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$folder/layers/upper,workdir=$folder/layers/work" /etc
for path in /run /var/lib /var/cache /etc/systemd/system; do mount -t tmpfs -o mode=755 tmpfs "$path"; done
mkdir -p /run/systemd/system
export container=isotherm-test SYSTEMD_UNIT_PATH="/etc/systemd/system:$folder/units" SYSTEMD_LOG_TARGET=console
unset NOTIFY_SOCKET
exec "$SYSTEMD" --system --unit=isotherm-test.target --show-status=no
"""


def missing() -> str | None:
    """Why this machine cannot run one, None if it may."""
    if os.geteuid() != 0:
        return "only root may start a systemd of its own"
    if not _BINARY:
        return "there is no systemd on this machine"
    tools = [tool for tool in ("unshare", "nsenter", "mount", "systemctl") if shutil.which(tool) is None]
    return f"there is no {tools[0]} on this machine" if tools else None


@dataclass
class OwnSystemd:
    """pid: of its first process, as this machine sees it."""

    pid: int
    environment: dict[str, str]

    def run(self, *command: object, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command inside, to its end."""
        line = ["nsenter", "--target", str(self.pid), "--all", "--wd=/", *map(str, command)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S, env=self.environment)
        assert not check or done.returncode == 0, f"{command} ended with {done.returncode}: {done.stdout}{done.stderr}"
        return done

    def tree(self, *folders: str) -> set[str]:
        """All paths below, but what systemd itself keeps."""
        line = ["find", *folders, "-not", "-path", "*/systemd/timers*", "-not", "-path", "*/systemd/catalog*"]
        return set(self.run(*line, check=False).stdout.splitlines())

    def show(self, unit: str, name: str) -> str:
        return self.run("systemctl", "show", unit, "--value", f"--property={name}").stdout.strip()

    def wait_for(self, unit: str, name: str, value: str) -> None:
        """Poll a property until it has a value."""
        end = time.monotonic() + PATIENCE_S
        while (found := self.show(unit, name)) != value:
            assert time.monotonic() < end, f"{name} of {unit} is {found}, not {value}"
            time.sleep(0.1)


@contextlib.contextmanager
def booted(folder: Path, environment: dict[str, str]) -> Iterator[OwnSystemd | str]:
    """A systemd that has started, or why none did. environment: of the commands that are run inside."""
    units = folder / "units"
    units.mkdir()
    (folder / "layers").mkdir()
    for target in _TARGETS:
        (units / f"{target}.target").write_text(f"[Unit]\nDescription={target}\nDefaultDependencies=no\n")
    log = folder / "systemd.log"
    with _control_groups(f"isotherm-test-{os.getpid()}") as groups, log.open("wb") as output:
        pairs = [str(path) for mount, group in groups for path in (mount, group)]

        def join() -> None:
            for _, group in groups:
                (group / "cgroup.procs").write_text(str(os.getpid()))

        process = subprocess.Popen(
            [*_UNSHARE, "sh", "-c", _BOOT, "boot", str(folder), *pairs],
            env={**os.environ, "SYSTEMD": _BINARY},
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=join,
        )
        try:
            pid = _first_process(process)
            machine = None if pid is None else OwnSystemd(pid, environment)
            if machine is None or not _is_up(machine, process):
                yield f"a systemd of its own does not start here: {log.read_text(errors='replace')[-500:]}"
            else:
                yield machine
        finally:
            process.send_signal(signal.SIGKILL)  # with which all inside ends
            process.wait()


def _first_process(process: "subprocess.Popen[bytes]") -> int | None:
    end = time.monotonic() + 10
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None and time.monotonic() < end:
        if found := children.read_text().split():
            return int(found[0])
        time.sleep(0.02)
    return None


def _is_up(machine: OwnSystemd, process: "subprocess.Popen[bytes]") -> bool:
    end = time.monotonic() + 20
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError):  # its first process may be gone
            if machine.run("systemctl", "is-active", "isotherm-test.target", check=False).stdout.strip() == "active":
                return True
        time.sleep(0.1)
    return False


@contextlib.contextmanager
def _control_groups(name: str) -> Iterator[list[tuple[Path, Path]]]:
    """A new group of this name in each hierarchy, below this process's own; pairs of mount and group."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = {line.split(":")[1]: line.split(":", 2)[2] for line in lines}
    made = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, kind, options, *_ = line.split()
        names = [key for key in own if kind == "cgroup" and key and set(key.split(",")) <= set(options.split(","))]
        key = "" if kind == "cgroup2" else next(iter(names), None)
        if kind not in ("cgroup", "cgroup2") or key is None:
            continue
        group = Path(mount) / own[key].lstrip("/") / name
        with contextlib.suppress(OSError):  # one that does not let us has its processes counted with ours
            group.mkdir()
            made.append((Path(mount), group))
    usable = [(mount, group) for mount, group in made if _admits(group)]
    try:
        yield usable
    finally:
        for _, group in made:
            _remove(group)


def _admits(group: Path) -> bool:
    """Whether a process may join: of a cpuset only when it has processors."""
    cpus = group / "cpuset.cpus"
    return (
        not (cpus.exists() and (group / "cpuset.mems").exists() and not cpus.read_text().strip())
        or (group / "cgroup.controllers").exists()
    )


def _remove(group: Path) -> None:
    end = time.monotonic() + 10
    while group.exists():
        for path in sorted((path for path in (group, *group.rglob("*")) if path.is_dir()), reverse=True):
            with contextlib.suppress(OSError):  # processes that were killed may not be gone yet
                path.rmdir()
        assert time.monotonic() < end, f"{group} cannot be removed"
        time.sleep(0.05)
