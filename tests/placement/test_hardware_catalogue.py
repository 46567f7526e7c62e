"""The nominal profiles that come along: all of them load, are found by name, and are plausible."""

import tomllib
from pathlib import Path

import pytest
from isotherm.experts.formats import FORMATS
from isotherm.placement.hardware import HardwareProfile
from isotherm.placement.hardware_catalogue import find_profile, nominal_names, nominal_profile
from isotherm.placement.hardware_file import HardwareError, save_profile
from support.nominal_machines import CARDS, HOSTS, machines

ROOT = Path(__file__).parents[2]
GIB = 1 << 30


@pytest.fixture(scope="module", params=nominal_names())
def profile(request: pytest.FixtureRequest) -> HardwareProfile:
    return nominal_profile(request.param)


def test_the_files_are_what_the_data_sheets_make_of_them() -> None:
    assert {each.name: each for each in machines()} == {name: nominal_profile(name) for name in nominal_names()}


def test_the_common_workstations_are_there() -> None:
    cards = [tuple(card.name for card in nominal_profile(name).accelerators) for name in nominal_names()]
    assert set(cards) >= {(), *((card.title,) for card in CARDS.values()), (CARDS["rtx3090"].title,) * 2}
    assert set(nominal_names()) >= set(HOSTS)


def test_a_nominal_profile_says_so_and_from_where(profile: HardwareProfile) -> None:
    assert profile.nominal
    assert profile.source.startswith("data sheets: ")
    assert not profile.isotherm_version


def test_all_kinds_of_weights_are_there(profile: HardwareProfile) -> None:
    assert set(profile.cpu.products) == {row.packed for row in FORMATS.values()}


def test_the_memory_is_as_fast_as_such_memory_is(profile: HardwareProfile) -> None:
    rate = profile.cpu.read_gb_s[profile.cpu.threads].value
    low, high = (35, 80) if "desktop" in profile.name else (120, 400)
    assert low <= rate <= high
    assert list(profile.cpu.read_gb_s) == sorted(profile.cpu.read_gb_s)
    assert all(each.value <= rate for each in profile.cpu.read_gb_s.values())


def test_more_tokens_at_once_take_longer_but_less_each(profile: HardwareProfile) -> None:
    for product in profile.cpu.products.values():
        one, two, four, eight = (each.value for each in product.block_ns_per_kib)
        assert one < two < four < eight < 8 * one


def test_cards_are_faster_than_the_host_and_links_slower(profile: HardwareProfile) -> None:
    for card in profile.accelerators:
        assert 10 * GIB < card.free_bytes < card.vram_bytes <= 32 * GIB
        assert 250 <= card.read_gb_s.value <= 1700
        assert 10 <= card.tflops["other"].value <= 150
        assert 10 <= card.to_gb_s.value <= 60
        assert card.to_unpinned_gb_s.value < card.to_gb_s.value < card.read_gb_s.value


def test_a_name_is_found_before_a_file_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ddr5-desktop").write_text("{}")
    assert find_profile("ddr5-desktop").name == "ddr5-desktop"


def test_a_file_is_found_by_its_path(tmp_path: Path) -> None:
    profile = nominal_profile("ddr4-desktop")
    save_profile(profile, tmp_path / "own.json")
    assert find_profile(tmp_path / "own.json") == profile


def test_an_unknown_name_is_refused_with_near_ones() -> None:
    with pytest.raises(HardwareError, match=r"ddr5-desktop-rtx409: neither a file nor .* ddr5-desktop-rtx4090"):
        find_profile("ddr5-desktop-rtx409")
    with pytest.raises(HardwareError, match="`isotherm calibrate --list` shows their names"):
        find_profile("abacus")


def test_a_missing_file_is_named() -> None:
    with pytest.raises(HardwareError, match=r"folder/own\.json: cannot be read"):
        find_profile("folder/own.json")


def test_profiles_are_installed_with_the_package() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "profiles/hardware/*.json" in settings["tool"]["setuptools"]["package-data"]["isotherm"]
    assert len(list((ROOT / "profiles" / "hardware").glob("*.json"))) == len(nominal_names())
