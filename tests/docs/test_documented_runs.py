"""Every command in the documentation that can be run in seconds is run, on a tiny model."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli import run
from support.daemon_process import Daemon, running
from support.documented import is_whole
from support.documented_home import REPO, Home, home, hub_files, write_models
from support.fake_hub import FakeHub, running_hub
from support.kept_machine import keep_profile
from support.pages import blocks, commands, pages

# Commands as they are written, and why they are not run. That they exist is checked all the same.
NOT_RUN = {
    r"isotherm calibrate(?!.*--list).*": "measures the machine for a minute",
    r"isotherm bench --kernels": "measures every kind of weights, for minutes",
    r"isotherm serve (PATH|--accelerator NAME)": "is run with names of models and of a card by other pages",
    r"make service(-remove)?( MODEL=.*)?": "is run under a systemd of its own, by another test",
    r"make (test|lint|format|bench|setup|docs|clean)": "changes the tree, or runs all tests",
    r"pip install .*": "needs a network",
    r"source .*": "changes the shell that it is typed into",
    r"python tests/device/.*": "needs a graphics card",
    r"python tests/(perf|support)/.*": "measures for minutes, or writes into the tree",
    r"(\.venv/bin/)?pytest .*": "is what runs this",
    r"(sudo )?(systemctl|journalctl|loginctl) .*": "asks the system's service manager",
    r"(sudo )?(\.venv/bin/)?isotherm service .*": "asks the system's service manager",
}
MADE = "docs/reference.md"  # the examples of the commands' own help: that they exist is checked
PAGES = [p for p in pages() if p != MADE and any(map(is_whole, commands(p)))]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "home"
    write_models(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        keep_profile(2)
        for line in (
            ("profile", "model.gguf", "--prompts", "prompts.txt", "--tokens", "8", "--threads", "2"),
            ("plan", "model.gguf", "--out", "one.json", "--hardware", "ddr4-desktop"),
            ("plan", "model.gguf", "--out", "four.json", "--streams", "4", "--hardware", "ddr4-desktop"),
        ):
            done = run(*line)
            assert done.exit_code == 0, (line, done.output)
        (trace,) = (folder / "state").rglob("*.npz")
        for name in ("routing.npz", "work.npz"):
            (folder / name).write_bytes(trace.read_bytes())
    return folder


@pytest.fixture(scope="module")
def served(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("served"), models / "isotherm-demo.gguf") as daemon:
        yield daemon
        assert daemon.stop() == 0


@pytest.fixture(scope="module")
def hub(models: Path) -> Iterator[FakeHub]:
    with running_hub(FakeHub(hub_files(models))) as hub:
        yield hub


@pytest.fixture
def at_home(models: Path, tmp_path: Path, served: Daemon, hub: FakeHub) -> Iterator[Home]:
    with home(models, tmp_path / "home", served, hub) as made:
        yield made


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page_run(page: str, at_home: Home) -> None:
    """In their order, in one home, as a reader would."""
    pulled = any("isotherm pull" in command.text and "--dry-run" not in command.text for command in commands(page))
    if not pulled or page == "README.md":  # else the page pulls what it then shows
        assert run("pull", f"{REPO}:Q8_0").exit_code == 0
    failed = []
    for command in commands(page):
        if is_whole(command) and not is_left_out(command.text):
            failed.append(at_home.obey(command))
    assert list(filter(None, failed)) == []


def test_the_client_in_the_readme_gets_an_answer(served: Daemon) -> None:
    (text,) = (block.text for block in blocks("README.md") if block.language == "python")
    assert "http://127.0.0.1:8440" in text
    program = text.replace("http://127.0.0.1:8440", served.url)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def is_left_out(text: str) -> bool:
    return any(re.fullmatch(pattern, text) for pattern in NOT_RUN)
