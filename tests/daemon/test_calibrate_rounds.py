"""Rounds of real measurements, of little weights: everything is there, once a round, and refused where nothing fits."""

from types import SimpleNamespace
from typing import Any

import pytest
from isotherm.cpu_kernels.seating import Seating
from isotherm.daemon import calibrate_decoders, calibrate_kinds, calibrate_rounds, calibrate_terms
from isotherm.daemon.calibrate_rounds import NEEDED, take_rounds
from isotherm.daemon.calibrate_terms import cpu_profile
from isotherm.daemon.memory import RESERVE, MemoryPlanError
from isotherm.experts import measured
from isotherm.experts.random_decoder import small_spec
from isotherm.placement.hardware import BLOCKS, HardwareProfile
from isotherm.placement.hardware_file import parse_profile, profile_text
from support.machine_terms import MACHINE

SIZES = {"CONTEXT": 64, "PROMPT": 32, "PART": 16, "PART_START": 32}


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SIZES.items():
        monkeypatch.setattr(calibrate_decoders, name, value)
        monkeypatch.setattr(calibrate_terms, name, value)
    monkeypatch.setattr(calibrate_decoders, "wide_spec", small_spec)
    monkeypatch.setattr(calibrate_decoders, "_OTHERS", (64, 64))
    monkeypatch.setattr(calibrate_kinds, "EXPERT_SIZES", (64, 64))
    monkeypatch.setattr(calibrate_kinds, "_NEAR_BYTES", 1 << 12)
    monkeypatch.setattr(measured, "FAR", 1 << 16)
    monkeypatch.setattr(measured, "_NEAR", 1 << 16)
    monkeypatch.setattr(calibrate_rounds, "KV_KINDS", ("int16", "f32"))
    monkeypatch.setattr(calibrate_rounds, "_ROUNDS", 2)
    reads = lambda seating: SimpleNamespace(gb_s=lambda: float(seating.threads))  # noqa: E731
    monkeypatch.setattr(calibrate_rounds, "PlainReads", reads)


def test_each_round_has_everything_once(little: None) -> None:
    steps: list[tuple[str, int, int]] = []
    rounds, shapes = take_rounds(("q5",), Seating(2), lambda *step: steps.append(step))
    assert len(rounds) == 2
    for each in rounds:
        assert each.reads == {1: 1.0}
        assert each.plain_gb_s == [2.0] * (2 * 5 + 2 * 2)
        assert set(each.products) == {"q5", "f32"}
        assert set(each.decoders.kv) == set(shapes.kv) == {"int16", "f32"}
        for times in each.products.values():
            assert tuple(times.near) == tuple(times.far) == BLOCKS
            assert min(*times.near.values(), *times.far.values()) > 0
    assert steps[-1] == ("measuring", 6, 6)
    assert [done for stage, done, _ in steps if stage == "measuring"] == sorted(
        done for stage, done, _ in steps if stage == "measuring"
    )


def test_what_rounds_give_is_a_profile_that_can_be_kept(little: None) -> None:
    cpu = cpu_profile(MACHINE, *take_rounds(("q5",), Seating(2), lambda *_: None))
    profile = HardwareProfile(name="here", nominal=False, source="measured", cpu=cpu)
    assert parse_profile(profile_text(profile).encode(), "here") == profile
    assert set(cpu.products) == {"q5", "f32"}


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    free: Any = SimpleNamespace(available=RESERVE + NEEDED - (1 << 26))
    monkeypatch.setattr("psutil.virtual_memory", lambda: free)
    with pytest.raises(MemoryPlanError, match=r"calibrating needs 3\.00 GiB, but only 2\.9"):
        take_rounds(("q4",), Seating(2), lambda *_: None)
