"""Models that are pulled: what a repository offers, what comes of it, and what does not."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from hypothesis import given
from hypothesis import strategies as st
from isotherm.daemon.library.choices import RemoteFile, choices_of, format_of, pick
from isotherm.daemon.library.names import LibraryError, parse_name
from isotherm.daemon.library.resolve import model_path
from isotherm.daemon.library.shelf import NOTE, Shelf
from isotherm.daemon.paths import models_folder
from support.cli import run
from support.fake_hub import FakeHub, running_hub
from support.tiny import write_blank_gguf, write_hf

pytestmark = pytest.mark.usefixtures("own_folders")

REPO = "owner/Tiny-GGUF"
SAFE = "owner/tiny"


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("hub")
    for name in ("Q4_0", "Q8_0"):
        write_blank_gguf(folder / f"tiny-{name}.gguf", "qwen3_moe", name)
    write_hf(folder / "hf", "llama")
    safe = {path.name: path.read_bytes() for path in sorted((folder / "hf").iterdir())}
    return {
        REPO: {
            "README.md": b"# Tiny",
            **{f"tiny-{name}.gguf": (folder / f"tiny-{name}.gguf").read_bytes() for name in ("Q4_0", "Q8_0")},
        },
        SAFE: safe | {"pytorch_model.bin": b"never", "modeling_tiny.py": b"never"},
    }


@pytest.fixture
def hub(contents: dict[str, dict[str, bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with running_hub(FakeHub({repo: dict(files) for repo, files in contents.items()})) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
        yield hub


def pulled(*arguments: str) -> Path:
    result = run("pull", *arguments)
    assert result.exit_code == 0, result.output
    return Path(result.stdout.strip())


def test_a_format_is_pulled_by_its_name_and_found_by_it(hub: FakeHub, contents: dict[str, dict[str, bytes]]) -> None:
    path = pulled(f"{REPO}:q4_0")
    assert path == models_folder() / REPO / "Q4_0" / "tiny-Q4_0.gguf"
    assert path.read_bytes() == contents[REPO]["tiny-Q4_0.gguf"]
    for name in (f"{REPO}:Q4_0", REPO, "Tiny-GGUF", "tiny-gguf:q4_0"):
        assert model_path(Path(name)) == path


def test_the_best_that_fits_is_pulled_where_no_format_is_named(hub: FakeHub) -> None:
    assert pulled(REPO).name == "tiny-Q8_0.gguf"


def test_what_does_not_fit_is_passed_over(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {path: len(data) for path, data in hub.files[REPO].items()}
    room = (sizes["tiny-Q8_0.gguf"] + sizes["tiny-Q4_0.gguf"]) * 0.45
    monkeypatch.setattr("isotherm.daemon.library.fit.RESERVE", 0)
    monkeypatch.setattr("isotherm.daemon.library.fit.free_memory", lambda: int(room))
    monkeypatch.setattr("isotherm.daemon.library.fit.plan_blocks", lambda demand, free: 1)
    assert pulled(REPO).name == "tiny-Q4_0.gguf"


def test_nothing_that_fits_is_told_with_the_reasons(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isotherm.daemon.library.fit.free_memory", lambda: 0)
    result = run("pull", REPO)
    assert result.exit_code == 3
    assert "nothing of owner/Tiny-GGUF fits here" in result.stderr and "Q4_0: " in result.stderr
    assert not list(models_folder().glob("*/*/*"))


def test_a_dry_run_shows_the_choices_and_fetches_nothing(hub: FakeHub) -> None:
    result = run("pull", REPO, "--dry-run")
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["format", "Q8_0", "Q4_0"]
    assert all("yes" in line for line in result.stdout.splitlines()[1:])
    assert not models_folder().exists()
    assert [asked for asked, ranged in hub.asked if "resolve" in asked and not ranged] == []


def test_a_folder_of_safetensors_comes_without_code(hub: FakeHub) -> None:
    path = pulled(SAFE)
    names = {file.name for file in path.iterdir() if file.is_file()}
    assert {"config.json", "model.safetensors", NOTE} <= names
    assert not names & {"pytorch_model.bin", "modeling_tiny.py"}
    assert run("show", SAFE).exit_code == 0


def test_a_broken_connection_is_gone_on_with(
    hub: FakeHub, contents: dict[str, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 4096)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # before it asks again
    hub.cut["tiny-Q4_0.gguf"] = [10_000] * 8
    result = run("pull", f"{REPO}:Q4_0")
    while result.exit_code != 0:
        assert "pull again" in result.stderr
        assert Shelf(models_folder()).all() == []
        result = run("pull", f"{REPO}:Q4_0")
    assert Path(result.stdout.strip()).read_bytes() == contents[REPO]["tiny-Q4_0.gguf"]
    assert any(ranged not in ("", "bytes=0-") for _, ranged in hub.asked)


def test_what_comes_damaged_is_removed_and_told(hub: FakeHub) -> None:
    hub.damaged.add("tiny-Q4_0.gguf")
    result = run("pull", f"{REPO}:Q4_0")
    assert result.exit_code == 3 and "came damaged" in result.stderr
    assert not list(models_folder().rglob("*.gguf"))
    assert run("list").stdout.startswith("none yet")
    hub.damaged.clear()
    pulled(f"{REPO}:Q4_0")


def test_what_is_here_is_not_asked_for(hub: FakeHub) -> None:
    path = pulled(f"{REPO}:Q4_0")
    hub.asked.clear()
    assert pulled(REPO) == path
    assert hub.asked == []


@pytest.mark.parametrize("how", ["flag", "variable"])
def test_offline_nothing_is_asked(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", how == "variable")
    result = run("pull", REPO, *(["--offline"] if how == "flag" else []))
    assert result.exit_code == 3 and "the hub is not asked" in result.stderr
    assert hub.asked == []


def test_a_file_in_the_hubs_own_cache_is_taken_from_there(
    hub: FakeHub, contents: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    from huggingface_hub import hf_hub_download

    hf_hub_download(REPO, "tiny-Q4_0.gguf", revision=None, cache_dir=tmp_path / "hub-cache")
    hub.asked.clear()
    assert pulled(f"{REPO}:Q4_0").read_bytes() == contents[REPO]["tiny-Q4_0.gguf"]
    assert [asked for asked, _ in hub.asked if asked.startswith("GET") and "resolve" in asked] == []


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("owner/none", "owner/none is not there, or is private"),
        (f"{REPO}:Q5_K_M", "has no 'Q5_K_M'; it has Q8_0, Q4_0"),
        ("Tiny-GGUF", "does not say whose model it is"),
        ("../../etc/passwd", "is no name of a model"),
        ("owner/..", "is no name of a model"),
    ],
)
def test_what_cannot_be_pulled_is_told_by_name(hub: FakeHub, name: str, told: str) -> None:
    result = run("pull", name)
    assert result.exit_code == 3
    assert told in result.stderr


def test_a_gated_model_says_what_it_asks_for(hub: FakeHub) -> None:
    hub.gated.add(REPO)
    result = run("pull", f"{REPO}:Q4_0")
    assert result.exit_code == 3 and "accept its terms" in result.stderr and "HF_TOKEN" in result.stderr


def test_a_hub_that_is_not_there_is_told(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    result = run("pull", REPO)
    assert result.exit_code == 3 and "cannot be fetched" in result.stderr


def test_a_full_disk_is_told_before_anything_comes(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"total": 2**40, "free": 1000})
    monkeypatch.setattr("isotherm.daemon.library.pull.shutil.disk_usage", lambda path: usage)
    result = run("pull", f"{REPO}:Q4_0")
    assert result.exit_code == 3 and "the disk of" in result.stderr
    assert not list(models_folder().rglob("*.gguf"))


def test_list_show_and_remove(hub: FakeHub) -> None:
    path = pulled(f"{REPO}:Q4_0")
    assert f"{REPO}:Q4_0" in run("list").stdout
    assert json.loads(run("list", "--json").stdout)[0]["path"] == str(path)
    shown = json.loads(run("show", "Tiny-GGUF", "--json").stdout)
    assert (shown["path"], shown["architecture"]) == (str(path), "qwen3_moe")
    assert 0 < shown["active_parameters"] < shown["parameters"]
    assert "experts" in run("show", path).stdout
    assert run("rm", "Tiny-GGUF", stdin="n\n").exit_code == 1
    assert path.exists()
    assert run("rm", "Tiny-GGUF", "--yes").stdout == f"removed {REPO}:Q4_0\n"
    assert list(models_folder().iterdir()) == []
    assert run("rm", "Tiny-GGUF", "--yes").exit_code == 2


def test_what_a_daemon_reads_is_not_removed(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    import mmap

    from isotherm.daemon.state import write_state
    from support.cli import daemon_state

    path = pulled(f"{REPO}:Q4_0")
    write_state(daemon_state(pid=os.getpid(), port=8443))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        result = run("rm", REPO, "--yes")
    assert result.exit_code == 3 and "is served by process" in result.stderr
    assert path.exists()


def test_several_of_a_name_are_told(hub: FakeHub) -> None:
    pulled(f"{REPO}:Q4_0")
    pulled(f"{REPO}:Q8_0")
    result = run("serve", "Tiny-GGUF", "--port", 0)
    assert result.exit_code == 3
    assert f"{REPO}:Q4_0, {REPO}:Q8_0" in result.stderr


def test_a_pull_that_is_killed_at_any_moment_is_gone_on_with(
    hub: FakeHub, contents: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "isotherm.daemon.cli", "pull", f"{REPO}:Q4_0"]
    environ = os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "0"}
    draw, kills = random.Random("kills of a pull"), int(os.environ.get("ISOTHERM_KILLS", "3"))
    for moment in (draw.uniform(0.5, 2.0) for _ in range(kills)):
        process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(moment)
        process.kill()
        process.wait()
        for kept in Shelf(models_folder()).all():
            assert Shelf(models_folder()).path(kept).read_bytes() == contents[REPO]["tiny-Q4_0.gguf"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == contents[REPO]["tiny-Q4_0.gguf"]


def files(*paths: str) -> list[RemoteFile]:
    return [RemoteFile(path, 10) for path in paths]


@pytest.mark.parametrize(
    ("paths", "labels"),
    [
        (["m-Q4_K_M.gguf", "m-Q8_0.gguf"], ["Q4_K_M", "Q8_0"]),
        (["Q4_K_M/m-00001-of-00002.gguf", "Q4_K_M/m-00002-of-00002.gguf"], ["Q4_K_M"]),
        (["m-00001-of-00002.gguf"], []),
        (["m-UD-IQ2_XXS.gguf", "m-bf16.gguf", "m-MXFP4_MOE.gguf"], ["IQ2_XXS", "BF16", "MXFP4_MOE"]),
        (["a-Q4_0.gguf", "b-Q4_0.gguf", "plain.gguf"], ["a-Q4_0", "b-Q4_0", "plain"]),
        (["mmproj-F16.gguf", "m.imatrix.gguf"], []),
        (["config.json", "model.safetensors", "x.bin"], ["safetensors"]),
        (["model.safetensors"], []),
        (["../m-Q4_0.gguf", "a//m.gguf", "a\\m.gguf"], []),
    ],
)
def test_what_a_repository_offers(paths: list[str], labels: list[str]) -> None:
    assert sorted(choice.label for choice in choices_of(files(*paths))) == sorted(labels)


def test_a_file_s_name_picks_it() -> None:
    choices = choices_of(files("a/m-Q4_0.gguf", "b/m-Q4_0.gguf"))
    assert [choice.files[0].path for choice in pick(choices, "b/m-Q4_0.gguf", "o/r")] == ["b/m-Q4_0.gguf"]


@given(st.text(max_size=40))
def test_any_text_is_a_name_that_is_no_path_or_is_refused(text: str) -> None:
    try:
        name = parse_name(text)
    except LibraryError:
        return
    for part in (name.owner, name.repo):
        assert "/" not in part and ".." not in part and part != "."


@pytest.mark.parametrize("note", [b"", b"{}", b"[1]", b'{"repo_id": "a/b"}', b"\xff", b"[" * 100_000])
def test_a_note_that_is_none_is_no_model(tmp_path: Path, note: bytes) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    (tmp_path / "a/b/c" / NOTE).write_bytes(note)
    assert Shelf(tmp_path).all() == []


def test_a_note_that_names_another_place_is_no_model(tmp_path: Path) -> None:
    value: dict[str, Any] = {"repo_id": "../..", "label": "etc", "revision": "", "files": ["passwd"], "size": 1}
    (tmp_path / "a/b/c").mkdir(parents=True)
    (tmp_path / "a/b/c" / NOTE).write_text(json.dumps(value))
    assert Shelf(tmp_path).all() == []


def test_formats_are_read_from_names() -> None:
    assert [format_of(name) for name in ("x-Q4_K_M.gguf", "Q8model.gguf", "x.f16.gguf")] == ["Q4_K_M", "", "F16"]
