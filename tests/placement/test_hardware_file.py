"""Hardware profiles as files: what is written comes back, and what is none is refused with its file, key and remedy."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from isotherm.placement.hardware import AcceleratorProfile, CpuProfile, Estimate, HardwareProfile, ProductCost
from isotherm.placement.hardware_file import (
    MOST_BYTES,
    HardwareError,
    load_profile,
    parse_profile,
    profile_text,
    save_profile,
)

RATE = Estimate(37.5, 0.25)
PRODUCT = ProductCost(read_gb_s=RATE, block_ns_per_kib=(RATE,) * 4, overlap=Estimate(0.75))
CPU = CpuProfile(
    name="Zen “4”",
    tier="avx2",
    threads=2,
    cores=4,
    read_gb_s={1: RATE, 2: Estimate(50.0)},
    products={"q4": PRODUCT, "f32": PRODUCT},
    call_us=Estimate(0.0),
    expert_us=RATE,
    op_us=RATE,
    step_us=RATE,
    token_ns_per_value=RATE,
    kv_gb_s={"int16": RATE},
    attention_gops={"int16": RATE},
    ram_bytes=1 << 40,
    free_bytes=0,
)
CARD = AcceleratorProfile(
    name="card",
    vram_bytes=12 << 30,
    free_bytes=11 << 30,
    read_gb_s=RATE,
    tflops={"other": RATE},
    launch_us=RATE,
    hop_us=RATE,
    to_gb_s=RATE,
    from_gb_s=RATE,
    to_unpinned_gb_s=RATE,
    from_unpinned_gb_s=RATE,
)
PROFILE = HardwareProfile(name="here", nominal=False, source="measured", cpu=CPU, accelerators=(CARD, CARD))
Change = Callable[[dict[str, Any]], object]


def changed(change: Change) -> bytes:
    value = json.loads(profile_text(PROFILE))
    change(value)
    return json.dumps(value).encode()


def set_at(*keys: Any, to: Any) -> Change:
    def change(value: Any) -> None:
        for key in keys[:-1]:
            value = value[key]
        value[keys[-1]] = to

    return change


def remove_at(*keys: Any) -> Change:
    def change(value: Any) -> None:
        for key in keys[:-1]:
            value = value[key]
        del value[keys[-1]]

    return change


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    save_profile(PROFILE, tmp_path / "here.json")
    assert load_profile(tmp_path / "here.json") == PROFILE
    assert os.listdir(tmp_path) == ["here.json"]


def test_what_has_a_default_may_be_left_out() -> None:
    def change(value: dict[str, Any]) -> None:
        for key in ("accelerators", "ssd_read_gb_s", "isotherm_version"):
            del value[key]
        del value["cpu"]["op_us"]["spread"]

    profile = parse_profile(changed(change), "f")
    assert (profile.accelerators, profile.ssd_read_gb_s, profile.cpu.op_us) == ((), Estimate(0.0), Estimate(37.5))


def test_a_whole_number_is_a_number() -> None:
    value = parse_profile(changed(set_at("cpu", "op_us", "value", to=3)), "f").cpu.op_us.value
    assert (value, type(value)) == (3.0, float)


def test_a_write_that_fails_leaves_the_file_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "here.json"
    save_profile(PROFILE, path)

    def full(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="disk full"):
        save_profile(PROFILE, path)
    assert load_profile(path) == PROFILE
    assert os.listdir(tmp_path) == ["here.json"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (set_at("schema", to=2), "f: schema is 2; only 1 can be read here, so calibrate again"),
        (remove_at("schema"), "f: schema is null"),
        (set_at("schema", to=True), "f: schema is true"),
        (set_at("nme", to="x"), "f: nme is not known; name is, so call it that"),
        (set_at("wheels", to=4), "f: wheels is not known; remove it"),
        (set_at("cpu", "op_ns", to=1), "f: cpu.op_ns is not known; op_us is"),
        (remove_at("cpu", "op_us"), "f: cpu.op_us is missing; add it, or calibrate again"),
        (remove_at("cpu"), "f: cpu is missing"),
        (set_at("cpu", to=[]), r"f: cpu is \[\]; it must be an object with name, tier"),
        (set_at("name", to=4), "f: name is 4; it must be a text"),
        (set_at("name", to="a\nb"), "f: name must be one line"),
        (set_at("source", to="x" * 5000), "f: source must be one line of at most 4096"),
        (set_at("nominal", to=0), "f: nominal is 0; it must be true or false"),
        (set_at("cpu", "threads", to=2.0), "f: cpu.threads is 2.0; it must be a whole number"),
        (set_at("cpu", "threads", to=True), "f: cpu.threads is true; it must be a whole number"),
        (set_at("cpu", "threads", to=0), "f: cpu.threads is 0; it must be a number from 1 to 65536"),
        (set_at("cpu", "ram_bytes", to=10**400), "f: cpu.ram_bytes is 1000"),
        (set_at("cpu", "op_us", to=3), "f: cpu.op_us is 3; it must be an object with value, spread"),
        (set_at("cpu", "op_us", "value", to="3"), 'f: cpu.op_us.value is "3"; it must be a number'),
        (set_at("cpu", "op_us", "value", to=-1), "f: cpu.op_us.value is -1; it must be a number from 0 to"),
        (set_at("cpu", "op_us", "value", to=float("nan")), "f: cpu.op_us.value is NaN; it must be a number from"),
        (set_at("cpu", "op_us", "value", to=float("inf")), "f: cpu.op_us.value is Infinity; it must be a number from"),
        (set_at("cpu", "op_us", "spread", to=-0.1), "f: cpu.op_us.spread is -0.1"),
        (set_at("cpu", "read_gb_s", to={}), "f: cpu.read_gb_s is {}; it must be an object with 1 to"),
        (
            set_at("cpu", "read_gb_s", "two", to={"value": 1}),
            "f: cpu.read_gb_s.two is named 'two'; it must be named by",
        ),
        (set_at("cpu", "read_gb_s", "02", to={"value": 1}), "f: cpu.read_gb_s.02 is named '02'"),
        (
            set_at("cpu", "read_gb_s", "1", "value", to=0),
            "f: cpu.read_gb_s.1.value is 0; it must be a number from 1e-09",
        ),
        (set_at("cpu", "products", "", to={}), "f: cpu.products. has a name that is no line"),
        (set_at("cpu", "products", "q4", "overlap", "value", to=1.5), "f: cpu.products.q4.overlap.value is 1.5"),
        (
            set_at("cpu", "products", "q4", "block_ns_per_kib", to=[]),
            "f: cpu.products.q4.block_ns_per_kib has 0 entries",
        ),
        (
            set_at("cpu", "products", "q4", "block_ns_per_kib", 1, "value", to=0),
            "f: cpu.products.q4.block_ns_per_kib.1.value is 0",
        ),
        (set_at("cpu", "kv_gb_s", "int16", "value", to=2e6), "f: cpu.kv_gb_s.int16.value is 2000000.0"),
        (set_at("accelerators", to={}), "f: accelerators is {}; it must be a list"),
        (set_at("accelerators", 1, "tflops", "other", "value", to=0), "f: accelerators.1.tflops.other.value is 0"),
        (remove_at("accelerators", 0, "to_gb_s"), "f: accelerators.0.to_gb_s is missing"),
    ],
)
def test_what_is_no_profile_is_refused_by_its_key(change: Change, words: str) -> None:
    with pytest.raises(HardwareError, match=f"^{words}"):
        parse_profile(changed(change), "f")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "f: is not JSON"),
        (b"{", "f: is not JSON .*; make one by `isotherm calibrate --out FILE`"),
        (b"\xff", "f: is not JSON"),
        (b"[" * 100_000, "f: is not JSON"),
        (b'{"schema": 1, "schema": 1}', "f: is not JSON .*'schema' stands there twice"),
        (b"[]", r"f: is \[\]; it must be an object"),
        (b" " * (MOST_BYTES + 1), "f: is larger than 1024 KiB"),
    ],
)
def test_what_is_no_object_is_refused(text: bytes, words: str) -> None:
    with pytest.raises(HardwareError, match=f"^{words}"):
        parse_profile(text, "f")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.json", tmp_path / "a\0b"):
        with pytest.raises(HardwareError, match=r"cannot be read .*; make a hardware profile by"):
            load_profile(path)


def test_a_large_file_is_not_read_whole(tmp_path: Path) -> None:
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(HardwareError, match="larger than"):
        load_profile(tmp_path / "large.json")


@pytest.mark.parametrize(("tokens", "ns"), [(1, 500), (7, 500 + 10 + 1), (8, 1000), (13, 1000 + 100 + 1), (16, 2000)])
def test_only_the_first_block_of_tokens_hides_behind_reading(tokens: int, ns: int) -> None:
    product = ProductCost(
        read_gb_s=Estimate(1024 / 500),  # 500 ns for a KiB
        block_ns_per_kib=tuple(map(Estimate, (1.0, 10.0, 100.0, 1000.0))),
        overlap=Estimate(1.0),
    )
    assert product.us(1024, tokens) * 1e3 == pytest.approx(ns)


def test_reading_hides_behind_computing_as_far_as_it_overlaps() -> None:
    product = ProductCost(
        read_gb_s=Estimate(1.024),
        block_ns_per_kib=(Estimate(250.0), RATE, RATE, Estimate(4000.0)),
        overlap=Estimate(0.75),
    )
    assert product.us(2048, 1) == pytest.approx(2 + 0.25 * 0.5)  # reads 2 us, computes 0.5
    assert product.us(2048, 8) == pytest.approx(8 + 0.25 * 2)
