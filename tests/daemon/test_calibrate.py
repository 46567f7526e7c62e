"""Calibrating: what is kept and when it is measured again, and the command, all with a measurer that is played."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from isotherm import __version__
from isotherm.daemon import calibrate
from isotherm.daemon.calibrate import COMMON_KINDS, kept_profile, this_machine
from isotherm.daemon.cli.output import ExitCode
from isotherm.daemon.machine import cpu_name
from isotherm.daemon.paths import hardware_file
from isotherm.experts.formats import FORMATS
from isotherm.experts.outline import outline
from isotherm.placement.hardware_catalogue import nominal_names, nominal_profile
from isotherm.placement.hardware_file import load_profile, save_profile
from support.cli import run
from support.machine_terms import SHAPES, known, measured
from support.tiny import write_gguf

pytestmark = pytest.mark.usefixtures("own_folders")


class Measurer:
    """Plays `take_rounds`: every kind is as fast as any other."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, kinds: Sequence[str], seating: Any, progress: Any) -> Any:
        self.asked.append(tuple(kinds))
        progress("measuring", 1, 1)
        one = measured(known())
        (times,) = one.products.values()
        return [replace(one, products=dict.fromkeys((*kinds, "q4"), times))], SHAPES


@pytest.fixture(autouse=True)
def measurer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Measurer]:
    played = Measurer()
    monkeypatch.setattr(calibrate, "take_rounds", played)
    monkeypatch.setattr(calibrate, "measure_cards", list)
    yield played


def silent(*_: Any) -> None:
    pass


def test_what_was_measured_is_kept_and_measured_once(measurer: Measurer) -> None:
    first = this_machine(["q8"], 2, silent)
    second = this_machine(["q8"], 2, silent)
    assert replace(second, cpu=replace(second.cpu, free_bytes=first.cpu.free_bytes)) == first
    assert measurer.asked == [("q8",)]
    assert (first.nominal, first.isotherm_version, first.cpu.name) == (False, __version__, cpu_name())


def test_a_kind_that_is_missing_is_measured_with_those_that_are_there(measurer: Measurer) -> None:
    this_machine(["q8"], 2, silent)
    profile = this_machine(["q6k"], 2, silent)
    assert set(profile.cpu.products) == {"q4", "q8", "q6k"}
    assert measurer.asked[1][0] == "q6k"


def test_another_number_of_threads_is_another_profile(measurer: Measurer) -> None:
    this_machine(["q8"], 2, silent)
    assert kept_profile(3) is None
    this_machine(["q8"], 3, silent)
    assert len(measurer.asked) == 2
    assert kept_profile(2) is not None


@pytest.mark.parametrize("changed", ["name", "tier", "threads", "cores", "version"])
def test_a_profile_of_another_machine_or_version_is_stale(changed: str) -> None:
    profile = this_machine(["q8"], 2, silent)
    cpu: dict[str, Any] = {"name": "another", "tier": "portable", "threads": 5, "cores": 99}
    stale = (
        replace(profile, isotherm_version="0.0.1")
        if changed == "version"
        else replace(profile, cpu=replace(profile.cpu, **{changed: cpu[changed]}))
    )
    save_profile(stale, hardware_file(2))
    assert kept_profile(2) is None


def test_free_memory_is_that_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    this_machine(["q8"], 2, silent)
    monkeypatch.setattr(calibrate, "free_memory", lambda: 12345)
    kept = kept_profile(2)
    assert kept is not None
    assert kept.cpu.free_bytes == 12345


def test_a_damaged_profile_is_measured_again(measurer: Measurer, caplog: pytest.LogCaptureFixture) -> None:
    this_machine(["q8"], 2, silent)
    hardware_file(2).write_text("{")
    this_machine(["q8"], 2, silent)
    assert len(measurer.asked) == 2
    assert "is not JSON" in caplog.text


def test_a_folder_that_cannot_be_written_costs_only_the_keeping(caplog: pytest.LogCaptureFixture) -> None:
    hardware_file(2).parent.parent.mkdir(parents=True)
    hardware_file(2).parent.write_text("in the way")
    assert this_machine(["q8"], 2, silent).cpu.threads == 2
    assert "measured again when it is needed" in caplog.text


@pytest.mark.parametrize(("slowest", "quiet"), [(1.02, True), (2.0, False)])
def test_a_profile_says_if_other_programs_ran_meanwhile(
    slowest: float, quiet: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = measured(known())
    (times,) = one.products.values()
    rounds = [
        replace(one, products={"q4": replace(times, near={n: ns * slower for n, ns in times.near.items()})})
        for slower in (1.0, 1.0, slowest)
    ]
    monkeypatch.setattr(calibrate, "take_rounds", lambda *_: (rounds, SHAPES))
    assert (this_machine(["q4"], 2, silent).source == "measured in 3 rounds") == quiet


def test_all_kinds_that_formats_are_packed_into_are_common() -> None:
    assert set(COMMON_KINDS) == {row.packed for row in FORMATS.values()}


def test_the_kinds_of_a_model_come_by_their_bytes(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", "qwen3_moe", "Q8_0")
    kinds = outline(tmp_path / "tiny.gguf", "int16").kinds
    assert kinds[0] == "q8"
    assert "f32" in kinds


def test_the_command_shows_units(measurer: Measurer) -> None:
    result = run("calibrate", "--threads", 2)
    assert result.exit_code == 0
    assert measurer.asked == [COMMON_KINDS]
    for words in ("measured in 1 rounds", "GB/s", "us", "ns a KiB", "GOPS", "iq4"):
        assert words in result.stdout


def test_the_command_writes_what_it_shows_as_json(tmp_path: Path) -> None:
    result = run("calibrate", "--threads", 2, "--json", "--out", tmp_path / "here.json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == json.loads((tmp_path / "here.json").read_text())
    assert load_profile(tmp_path / "here.json").cpu.threads == 2


def test_a_model_narrows_what_is_measured(measurer: Measurer, tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", "qwen3_moe", "Q8_0")
    assert run("calibrate", tmp_path / "tiny.gguf", "--threads", 2).exit_code == 0
    assert measurer.asked == [outline(tmp_path / "tiny.gguf", "int16").kinds]


def test_nominal_profiles_are_listed_and_shown() -> None:
    listed = run("calibrate", "--list")
    assert all(name in listed.stdout for name in nominal_names())
    assert set(json.loads(run("calibrate", "--list", "--json").stdout)) == set(nominal_names())
    shown = run("calibrate", "--show", "ddr5-desktop-rtx4090")
    assert "RTX 4090" in shown.stdout
    assert nominal_profile("ddr5-desktop-rtx4090").cpu.name in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--show", "ddr5-desktp"), ExitCode.USAGE, "perhaps ddr5-desktop"),
        (("--show", "missing.json"), ExitCode.USAGE, "missing.json: cannot be read"),
        (("missing.gguf",), ExitCode.MODEL, "missing.gguf"),
        (("--out", "missing/here.json"), ExitCode.USAGE, "--out missing/here.json lies in no folder that exists"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(arguments: tuple[str, ...], code: ExitCode, words: str) -> None:
    result = run("calibrate", *arguments)
    assert (result.exit_code, len(result.stderr.splitlines())) == (code, 1)
    assert words in result.stderr
