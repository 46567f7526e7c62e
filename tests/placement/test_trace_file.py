"""Trace files: what is written is read, and nothing that a file states is believed."""

import io
import json
import os
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from isotherm.placement.trace import PHASES, RoutingTrace, TraceError, empty_trace
from isotherm.placement.trace_file import load_trace, merge_into, save_trace
from support.routing import FINGERPRINT, random_sample, trace_of_sample

FIELDS = ("counts", "mass", "tokens", "steps", "distinct")
Members = dict[str, bytes]


def recorded(seed: int = 0, tokens: int = 9) -> RoutingTrace:
    sample = random_sample(np.random.default_rng(seed), tokens, 3, 6, 2)
    trace = trace_of_sample(sample, 6, (0, 4) if tokens > 4 else (0,))
    trace.phases["prefill"] = trace.phases["decode"].times(2.5)
    return trace


def same(one: RoutingTrace, other: RoutingTrace) -> bool:
    counts = all(
        np.array_equal(getattr(one.phases[phase], name), getattr(other.phases[phase], name))
        for phase in PHASES
        for name in FIELDS
    )
    sample = np.array_equal(one.sample, other.sample) and np.array_equal(one.starts, other.starts)
    names = ("fingerprint", "layers", "num_experts", "top_k")
    return counts and sample and all(getattr(one, name) == getattr(other, name) for name in names)


def members(path: Path) -> Members:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path: Path, parts: Members) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)


def npy(array: np.ndarray[Any, Any], version: tuple[int, int] = (1, 0)) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version=version, allow_pickle=True)
    return stream.getvalue()


def header(parts: Members) -> dict[str, Any]:
    fields = json.loads(np.load(io.BytesIO(parts["header.npy"])).tobytes())
    assert isinstance(fields, dict)
    return fields


def with_header(parts: Members, **changes: object) -> Members:
    text = json.dumps(header(parts) | changes).encode()
    return parts | {"header.npy": npy(np.frombuffer(text, np.uint8))}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "model.trace.npz"
    save_trace(target, recorded())
    return target


def test_a_trace_survives_the_file(path: Path) -> None:
    assert same(load_trace(path, FINGERPRINT), recorded())


def test_other_programs_can_read_the_file(path: Path) -> None:
    with np.load(path) as arrays:
        np.testing.assert_array_equal(arrays["decode_counts"], recorded().phases["decode"].counts)
        assert json.loads(arrays["header"].tobytes())["layers"] == [1, 2, 3]


def test_saving_replaces_and_leaves_no_half_written_file(path: Path) -> None:
    save_trace(path, recorded(1))
    assert same(load_trace(path), recorded(1))
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name]


def test_the_name_changes_hands_when_all_is_on_the_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (calls.append(os.fstat(file).st_size), fsync(file)))
    monkeypatch.setattr(os, "replace", lambda *paths: (calls.append("replaced"), replace(*paths)))
    save_trace(path, recorded(1))
    assert calls == [path.stat().st_size, "replaced"]


def test_a_failed_write_leaves_the_old_file(path: Path) -> None:
    broken = recorded(1)
    broken.sample = np.array([object()])  # type: ignore[assignment]
    with pytest.raises(ValueError, match="Object arrays"):
        save_trace(path, broken)
    assert same(load_trace(path), recorded())
    assert not list(path.parent.glob("*.part"))


def test_a_trace_without_traffic_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none\.npz: no token was recorded.*run prompts first"):
        save_trace(tmp_path / "none.npz", empty_trace(FINGERPRINT, (0,), 4, 2))
    assert not (tmp_path / "none.npz").exists()


def test_a_trace_without_decode_tokens_has_no_sample(tmp_path: Path) -> None:
    trace = empty_trace(FINGERPRINT, (1, 2, 3), 6, 2)
    trace.phases["prefill"] = recorded().phases["prefill"]
    save_trace(tmp_path / "prefill.npz", trace)
    assert same(load_trace(tmp_path / "prefill.npz"), trace)


def test_a_missing_file_says_how_to_record(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none\.npz: there is no such routing trace; record one"):
        load_trace(tmp_path / "none.npz")


def test_what_the_system_refuses_to_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read: Is a directory"):
        load_trace(tmp_path)


def test_another_models_trace_is_refused_by_both_names(path: Path) -> None:
    with pytest.raises(TraceError, match=r"model\.trace\.npz: .* of model 5eed, not of beef; .*record"):
        load_trace(path, "beef")


@pytest.mark.parametrize(
    ("version", "remedy"), [(0, "record it again"), (2, "update Isotherm")], ids=["earlier", "later"]
)
def test_another_version_says_what_to_do(path: Path, version: int, remedy: str) -> None:
    write(path, with_header(members(path), version=version))
    with pytest.raises(
        TraceError, match=rf"model\.trace\.npz: .*version {version}, and this release reads 1; {remedy}"
    ):
        load_trace(path)


def test_a_file_without_traffic_is_refused(path: Path) -> None:
    parts = members(path)
    for name in parts:
        if name.startswith(("prefill_", "decode_")):
            parts[name] = npy(np.zeros_like(np.load(io.BytesIO(parts[name]))))
    write(path, parts)
    with pytest.raises(TraceError, match="holds no traffic; record"):
        load_trace(path)


@pytest.mark.parametrize("size", [0, 1, 100, -1, -30])
def test_a_truncated_file_is_refused(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(
        TraceError, match=r"model\.trace\.npz is damaged or no routing trace: .*; move it away and record"
    ):
        load_trace(path)


def test_a_flipped_bit_never_passes_for_sound(path: Path) -> None:
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        try:
            trace = load_trace(path)
        except TraceError as error:
            assert str(path) in str(error)
        else:
            assert same(trace, recorded()), at  # a date, say, or a flag that says nothing of the contents


CHANGES: list[tuple[Callable[[Members], Members], str]] = [
    (lambda parts: {"a.txt": b"other"}, "header.npy"),
    (lambda parts: {name: data for name, data in parts.items() if name != "sample.npy"}, "sample.npy"),
    (lambda parts: parts | {"header.npy": npy(np.frombuffer(b"{", np.uint8))}, "property name"),
    (lambda parts: parts | {"header.npy": npy(np.frombuffer(b"[" * 60000, np.uint8))}, "recursion"),
    (lambda parts: parts | {"header.npy": npy(np.frombuffer(b"[]", np.uint8))}, "not that of a routing trace"),
    (lambda parts: parts | {"header.npy": npy(np.frombuffer(b" " * 70000, np.uint8))}, "header has 70128 bytes"),
    (lambda parts: parts | {"header.npy": npy(np.array([{}], object))}, "array of object"),
    (lambda parts: with_header(parts, format="another"), "not that of a routing trace"),
    (lambda parts: with_header(parts, num_experts=1 << 40), "num_experts 1099511627776, not a whole number"),
    (lambda parts: with_header(parts, num_experts=True), "num_experts True"),
    (lambda parts: with_header(parts, top_k=7), "top_k 7, not a whole number from 1 to 6"),
    (lambda parts: with_header(parts, sample_tokens=-1), "sample_tokens -1"),
    (lambda parts: with_header(parts, num_experts=1 << 14, layers=list(range(1000))), "bytes of arrays, more than"),
    (lambda parts: with_header(parts, sample_tokens=10), r"uint16 \[9, 3, 2\], not of <u2 \[10, 3, 2\]"),
    (lambda parts: with_header(parts, sample_tokens=9999), "sample has 236 bytes where the header states 119988"),
    (lambda parts: with_header(parts, layers=[1, 1, 2]), "out of order"),
    (lambda parts: with_header(parts, layers=[1, 2, "3"]), "numbers of layers"),
    (lambda parts: with_header(parts, layers=list(range(2000))), "numbers of layers"),
    (lambda parts: with_header(parts, fingerprint="\n"), "fingerprint"),
    (lambda parts: with_header(parts, steps=3), "steps of each phase"),
    (lambda parts: with_header(parts, steps={"prefill": 1, "decode": float("nan")}), "nan steps of decode"),
    (lambda parts: with_header(parts, steps={"prefill": 10**400, "decode": 1}), "too large"),
    (lambda parts: parts | {"sample.npy": npy(np.zeros((9, 3, 2), np.uint16), (2, 0))}, "not an array in format 1.0"),
    (lambda parts: parts | {"sample.npy": npy(np.zeros((9, 3, 2), np.int16))}, "array of int16"),
    (lambda parts: parts | {"decode_mass.npy": npy(np.ones((3, 6), order="F"))}, "array of float64"),
    (lambda parts: parts | {"sample.npy": npy(np.zeros((9, 2, 3), np.uint16))}, r"\[9, 2, 3\]"),
    (lambda parts: parts | {"sample.npy": npy(np.zeros((9, 3, 2), np.uint16))}, "twice for one token"),
    (lambda parts: parts | {"sample.npy": npy(np.full((9, 3, 2), 6, np.uint16))}, "expert 6 of 6"),
    (lambda parts: parts | {"starts.npy": npy(np.array([0, 9]))}, "out of order"),
    (lambda parts: parts | {"starts.npy": npy(np.array([4, 0]))}, "out of order"),
    (lambda parts: parts | {"decode_counts.npy": npy(np.full((3, 6), 1.0))}, "add up to 2 experts"),
    (lambda parts: parts | {"decode_mass.npy": npy(np.full((3, 6), np.nan))}, "not all finite"),
    (lambda parts: parts | {"decode_tokens.npy": npy(np.full(3, -1.0))}, "not all positive"),
    (lambda parts: parts | {"decode_distinct.npy": npy(np.full(3, 1e9))}, "more experts touched than chosen"),
]


@pytest.mark.parametrize(("change", "fault"), CHANGES, ids=[fault for _, fault in CHANGES])
def test_a_file_that_contradicts_itself_is_refused(
    path: Path, change: Callable[[Members], Members], fault: str
) -> None:
    write(path, change(members(path)))
    with pytest.raises(TraceError, match=rf"model\.trace\.npz is damaged.*{fault}"):
        load_trace(path)


def test_data_that_unpacks_to_more_than_it_states_is_not_unpacked(path: Path) -> None:
    """A member of a few bytes by its header, of many megabytes in truth."""
    parts = members(path)
    stated, truth = len(parts["sample.npy"]), parts["sample.npy"] + bytes(32 << 20)
    write(path, parts | {"sample.npy": truth})
    size = len(truth).to_bytes(4, "little")
    assert size in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(size, stated.to_bytes(4, "little")))
    tracemalloc.start()
    try:
        with pytest.raises(TraceError, match="Bad CRC-32"):
            load_trace(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_file_larger_than_any_trace_is_not_opened(path: Path) -> None:
    with path.open("ab") as file:
        file.truncate(1 << 30)  # takes no room on the disk
    with pytest.raises(TraceError, match="1073741824 bytes, more than"):
        load_trace(path)


def test_merging_begins_the_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "model.npz"
    assert same(merge_into(path, recorded()), recorded())
    assert same(load_trace(path), recorded())


def test_merging_adds_to_the_file(path: Path) -> None:
    merged = merge_into(path, recorded(1, 4), half_life=4.0)
    assert same(load_trace(path), merged)
    assert merged.phases["decode"].steps == 9 / 2 + 4
    assert merged.starts.tolist() == [0, 4, 9]


def test_merging_nothing_changes_nothing(path: Path, tmp_path: Path) -> None:
    before = path.read_bytes()
    nothing = empty_trace(FINGERPRINT, (1, 2, 3), 6, 2)
    assert same(merge_into(path, nothing), recorded())
    assert path.read_bytes() == before
    assert merge_into(tmp_path / "other.npz", nothing).empty
    assert not (tmp_path / "other.npz").exists()


def test_merging_into_another_models_file_is_refused(path: Path) -> None:
    before = path.read_bytes()
    other = trace_of_sample(recorded().sample, 6, fingerprint="beef")
    with pytest.raises(TraceError, match=r"model\.trace\.npz: .* of model 5eed, not of beef"):
        merge_into(path, other)
    with pytest.raises(TraceError, match=r"model\.trace\.npz: two traces of model 5eed differ in form"):
        merge_into(path, trace_of_sample(recorded().sample, 8))
    assert path.read_bytes() == before


MERGE_OFTEN = """
import pathlib, sys
from isotherm.placement.trace_file import load_trace, merge_into
target, source = map(pathlib.Path, sys.argv[1:])
sys.stdout.write("ready\\n")
sys.stdout.flush()
sys.stdin.readline()
for _ in range(20):
    merge_into(target, load_trace(source))
"""


def test_two_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    path, sources = tmp_path / "model.npz", [tmp_path / "1.npz", tmp_path / "2.npz"]
    for seed, source in enumerate(sources, 1):
        save_trace(source, recorded(seed, 3))
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", MERGE_OFTEN, path, source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for source in sources
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    found = load_trace(path)
    wanted = 20 * (recorded(1, 3).phases["decode"].counts + recorded(2, 3).phases["decode"].counts)
    np.testing.assert_array_equal(found.phases["decode"].counts, wanted)
    assert (len(found.sample), len(found.starts)) == (120, 40)
