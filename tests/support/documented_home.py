"""A home in which documented commands are run: a tiny model under every name that they use, and a hub that has it."""

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants
from isotherm.cpu_kernels.jit import cache_folder as kernel_folder
from isotherm.daemon import bench, bench_moe, bench_threads
from isotherm.daemon.machine import default_threads
from support.cli import run
from support.daemon_process import COMMAND, PATIENCE_S, Daemon
from support.documented import parse, target, words
from support.fake_hub import FakeHub
from support.held_port import held_port
from support.kept_machine import keep_profile
from support.pages import ROOT, Command
from support.tiny import write_gguf, write_hf

REPO = "Qwen/Qwen3-30B-A3B-GGUF"
# What is smaller than documented, so that it takes seconds, and what may not leave this machine.
_INSTEAD = {
    "128x8x2048x768": "8x2x64x64",
    "1,16,64,256,1024": "1,16",
    "0.0.0.0": "127.0.0.1",
    "1024": "32",
    "2000": "20",
    "128": "8",
    "4096": "128",
    "4112": "144",
    "8192": "256",
    "16384": "256",
    "512": "32",
    "0.5,1,2": "2,4",
    "120": "1",
    "1,4,8": "1,2",
    "1,8": "1,2",
    "org/name": "isotherm-demo",
}
_APART = ("[--rate 2]", "[--accelerator NAME]")  # are refused beside what is written before them
_SERVED_AT = re.compile(r"(?:https?://)?127\.0\.0\.1:8440\b|https?://host\b")
_CODES = {"isotherm doctor": (0, 1)}  # the machine of the tests may have faults


@dataclass
class Home:
    """A folder with all that commands ask for. served: a daemon that runs anyway. port: of the page's own, if any."""

    folder: Path
    served: Daemon
    port: str = ""

    def obey(self, command: Command) -> str:
        """Run a command; what went wrong, empty if nothing did."""
        text = command.text
        for part in _APART:
            text = text.replace(part, "")
        line = [self._adapted(word) for word in words(text)]
        if line[0] == "make":
            code, said = self._make(line[1])
        elif line[0] != "isotherm":
            code, said = self._call([os.path.expanduser(word) for word in line])
        elif line[1] == "serve":
            code, said = self._serve(line[1:])
        else:
            code, said = self._isotherm(line[1:], command)
        allowed = _CODES.get(" ".join(line[:2]), (0,))
        return "" if code in allowed else f"{command} ({shlex.join(line)}) ended with {code}: {said}"

    def end(self) -> None:
        """Stop the page's own daemon, if it runs."""
        if self.port:
            self._call([*COMMAND, "stop", "--port", self.port])
            self.port = ""

    def _adapted(self, word: str) -> str:
        if word in _INSTEAD:
            return _INSTEAD[word]
        return _SERVED_AT.sub(self.served.url, word)

    def _isotherm(self, arguments: list[str], command: Command) -> tuple[int, str]:
        name, _ = parse(arguments)
        if name == "isotherm top":
            arguments = [*arguments, "--looks", "2", "--every", "0.2"]
        if name in ("isotherm chat", "isotherm status", "isotherm stop", "isotherm top") and not self.port:
            assert name != "isotherm stop", "the page has started no daemon"
            arguments = [*arguments, "--url", self.served.url] if "--url" not in arguments else arguments
        result = run(*arguments, stdin="y\n" if name == "isotherm rm" else "the cat\n")
        if name == "isotherm stop":
            self.port = ""
        if target(command.text):
            Path(target(command.text)).expanduser().write_text(result.stdout)
        return result.exit_code, result.output + (repr(result.exception) if result.exception else "")

    def _serve(self, arguments: list[str]) -> tuple[int, str]:
        self.end()
        added = [] if "--threads" in arguments else ["--threads", "2"]
        line = [
            *COMMAND,
            *(word for word in arguments if word != "--background"),
            "--port",
            "0",
            "--background",
            *added,
        ]
        code, said = self._call([*line, "--no-pack-cache"])
        if found := re.search(r" is served at http://127\.0\.0\.1:(\d+)", said):
            self.port = found[1]
        if "--background" not in arguments:
            self.end()
        return code, said

    def _make(self, name: str) -> tuple[int, str]:
        """As if it had set up what the recipe needs: its commands are those of this interpreter."""
        if name == "serve":
            self.end()
            with held_port() as port:
                self.port = str(port)
                return self._made(name)
        found = self._made(name)
        if name == "stop":
            self.port = ""
        return found

    def _made(self, name: str) -> tuple[int, str]:
        line = ["make", "-C", str(ROOT), "-o", "setup", name, f"PORT={self.port}", f"BIN={self.folder / 'bin'}"]
        return self._call(line)

    def _call(self, line: list[str]) -> tuple[int, str]:
        variables = {**os.environ, "ISOTHERM_CONFIG": str(self.folder / "demo.toml"), "COLUMNS": "200"}
        done = subprocess.run(line, env=variables, cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE_S)
        return done.returncode, done.stdout + done.stderr


def write_models(folder: Path) -> None:
    """What documented commands read, and what the hub has."""
    folder.mkdir(parents=True, exist_ok=True)
    write_gguf(folder / "model.gguf", "qwen3_moe", "Q4_0", max_position_embeddings=4096)
    for name in ("large.gguf", "small.gguf", "isotherm-demo.gguf"):
        shutil.copy(folder / "model.gguf", folder / name)
    write_hf(folder / "Qwen3-30B-A3B", "qwen3_moe")
    (folder / "prompts.txt").write_text("the cat is on the mat\nthe hat\n")
    program = folder / "bin" / "isotherm"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m isotherm.daemon.cli "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


@contextmanager
def home(models: Path, folder: Path, served: Daemon, hub: FakeHub) -> Iterator[Home]:
    """A copy of the models' folder, as working directory and home of this process."""
    shutil.copytree(models, folder)
    (folder / "demo.toml").write_text(f'[models.isotherm-demo]\npath = "{folder}/isotherm-demo.gguf"\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMBA_CACHE_DIR", str(kernel_folder()))
        patch.delenv("ISOTHERM_CONFIG", raising=False)
        patch.setenv("HOME", str(folder))
        for name in ("CACHE", "CONFIG", "DATA", "STATE"):
            patch.setenv(f"XDG_{name}_HOME", str(folder / f".{name.lower()}"))
        patch.chdir(folder)
        patch.setattr(constants, "ENDPOINT", hub.url)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
        patch.setattr(constants, "HF_HUB_CACHE", str(folder / "hub-cache"))
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        # Memory as fast as ever: what others on the machine do to it would have runs repeated.
        patch.setattr(bench, "PlainReads", lambda seating: SimpleNamespace(gb_s=lambda: 30.0))
        patch.setattr(bench, "_calibrated_gb_s", lambda threads: None)
        patch.setattr(bench_threads, "read_gb_s", lambda *of_threads, **more: 30.0)
        patch.setattr(bench_moe, "_SECONDS", 0.01)
        patch.setattr("isotherm.daemon.assembly.demo_model", lambda report: folder / "isotherm-demo.gguf")
        for threads in {2, default_threads()}:
            keep_profile(threads)
        made = Home(folder, served)
        try:
            yield made
        finally:
            made.end()


def hub_files(models: Path) -> dict[str, dict[str, bytes]]:
    names = ("Qwen3-30B-A3B-Q8_0.gguf", "Qwen3-30B-A3B-Q4_K_M.gguf")
    return {REPO: {name: (models / "model.gguf").read_bytes() for name in names}}
