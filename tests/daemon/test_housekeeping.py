"""Housekeeping: what goes from the cache folder, what stays, and what is said of it."""

import logging
import os
import time
from pathlib import Path

import pytest
from isotherm.daemon import housekeeping
from isotherm.daemon.housekeeping import DAY, KERNELS, stale, tidy
from isotherm.daemon.paths import cache_folder, packed_folder, state_folder
from isotherm.daemon.state import write_state
from isotherm.placement.files import locked
from support.cli import daemon_state

pytestmark = pytest.mark.usefixtures("own_folders")

NOW = 1e9


def age(path: Path, days: float, now: float = NOW) -> None:
    os.utime(path, (now - days * DAY,) * 2)


def folders(parent: Path, ages: dict[str, float], now: float = NOW) -> list[Path]:
    for name, days in ages.items():
        (parent / name).mkdir(parents=True)
        age(parent / name, days, now)
    return [parent / name for name in ages]


@pytest.mark.parametrize(
    ("ages", "kept", "gone"),
    [
        ({"a": 0, "b": 29, "c": 31}, 9, {"c"}),
        ({"a": 31}, 9, {"a"}),
        ({"a": 0, "b": 2, "c": 3, "d": 4}, 2, {"c", "d"}),
        ({"a": 0.1, "b": 0.2, "c": 0.3, "d": 1.1}, 2, {"d"}),  # tried on one day
        ({}, 2, set()),
    ],
)
def test_the_latest_stay_and_what_is_unused_goes(
    ages: dict[str, float], kept: int, gone: set[str], tmp_path: Path
) -> None:
    assert {folder.name for folder in stale(folders(tmp_path, ages), kept, NOW)} == gone


def test_a_folder_is_used_when_something_is_added_to_one_of_its_folders(tmp_path: Path) -> None:
    (old,) = folders(tmp_path, {"old": 40})
    inside = old / "kernels"
    inside.mkdir()
    age(inside, 5)
    age(old, 40)
    assert stale([old], 1, NOW) == []


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Path:
    current = cache_folder() / "kernels" / "0123456789abcdef"
    current.mkdir(parents=True)
    monkeypatch.setattr(housekeeping, "kernel_folder", lambda: current)
    return current.parent


def test_kernels_of_other_versions_go_and_the_log_says_it(kernels: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    age(kernels / "0123456789abcdef", 50, time.time())  # it serves now, for the first time in long
    others = folders(kernels, {f"{i:016x}": 2 + i for i in range(KERNELS + 1)}, time.time())
    (others[-1] / "deep").mkdir()
    (others[-1] / "deep" / "kernel.nbi").touch()
    age(others[-1] / "deep", 20, time.time())
    age(others[-1], 20, time.time())
    (foreign,) = folders(kernels, {"not of ours": 50}, time.time())
    tidy()
    assert {path.name for path in kernels.iterdir()} == {
        "0123456789abcdef", foreign.name, *(path.name for path in others[: KERNELS - 1])
    }  # fmt: skip
    assert f"removed {others[-1]}: another version's" in caplog.text


def test_demo_models_of_other_versions_go(kernels: Path) -> None:
    folders(cache_folder(), {"demo-v3-aa": 0, "demo-v2-aa": 3, "demo-v1-aa": 4, "mine": 90}, time.time())
    tidy()
    left = {path.name for path in cache_folder().iterdir() if path.name != "kernels"}
    assert left == {"demo-v3-aa", "demo-v2-aa", "mine"}


def store(name: str, days: float, model: Path | None) -> Path:
    packed_folder().mkdir(parents=True, exist_ok=True)
    path = packed_folder() / f"{name}.packed"
    path.write_bytes(b"x")
    if model is not None:
        path.with_suffix(".model").write_bytes(os.fsencode(model))
    age(path, days, time.time())
    return path


def test_stores_that_are_not_used_or_have_no_model_go(
    kernels: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    there, gone = tmp_path / "there.gguf", tmp_path / "gone.gguf"
    there.touch()
    kept = [store("a", 29, there), store("b", 0.5, gone), store("c", 29, None)]
    unused, lost = store("d", 31, there), store("e", 1.5, gone)
    tidy()
    assert set(packed_folder().glob("*.packed")) == set(kept)
    assert not unused.with_suffix(".model").exists()
    assert f"removed {unused}: it was not used for 31 days" in caplog.text
    assert f"removed {lost}: its model is gone" in caplog.text


def test_a_store_that_is_being_written_stays(kernels: Path) -> None:
    path = store("a", 50, None)
    path.with_name(path.name + ".part").touch()
    with locked(path.with_suffix(".lock")):
        tidy()
        assert path.exists() and path.with_name(path.name + ".part").exists()
    tidy()
    assert not path.exists() and not path.with_name(path.name + ".part").exists()


def test_a_folder_that_cannot_be_read_is_told_and_no_error(
    kernels: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(folder: Path) -> list[Path]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(housekeeping, "remove_parts", refuse)
    tidy()
    assert "the cache and state folders are not tidied" in caplog.text


def test_what_killed_daemons_left_goes_and_what_lives_stays() -> None:
    write_state(daemon_state(port=8441))
    write_state(daemon_state(port=8442, pid=2**22 + 1))
    foreign = state_folder() / "serve-8443.json"
    foreign.write_text('{"of": "a later version"}')
    part, own_part = (state_folder() / f"serve-8444.json.{pid}" for pid in (2**22 + 1, os.getpid()))
    part.touch()
    own_part.touch()
    tidy()
    assert set(state_folder().iterdir()) == {state_folder() / "serve-8441.json", foreign, own_part}
