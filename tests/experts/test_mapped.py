"""Mapping files in huge pages: what is mapped, and when it is left to the caller."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
from isotherm.experts import mapped
from isotherm.experts.mapped import HUGE_PAGE, map_huge

SIZE = 16 * HUGE_PAGE + 5
SMAPS = """7f0000000000-7f0000400000 r--s 00000000 fe:00 12 /a file:
Size:               4096 kB
FilePmdMapped:      2048 kB
VmFlags: rd mr me ms sd hg
7f0000400000-7f0000a00000 r--s 00000000 fe:00 13
Size:               6144 kB
FilePmdMapped:      6144 kB
7f0000b00000-7f0000c00000 rw-p 00000000 00:00 0
Size:               1024 kB
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BinaryIO]:
    path = tmp_path_factory.mktemp("mapped") / "file"
    path.write_bytes(bytes(HUGE_PAGE) + np.arange(SIZE, dtype=np.uint8).tobytes())
    with path.open("rb") as opened:
        yield opened


def mapped_huge(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(mapped, "_mapped_huge", lambda address, smaps: size)


def test_the_file_is_there_from_the_offset_on(file: BinaryIO, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped_huge(monkeypatch, 16 * HUGE_PAGE)
    memory = map_huge(file.fileno(), HUGE_PAGE, SIZE)
    assert memory is not None
    np.testing.assert_array_equal(memory, np.arange(SIZE, dtype=np.uint8))
    assert not memory.flags.writeable


def test_what_comes_in_small_pages_is_not_mapped(file: BinaryIO, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped_huge(monkeypatch, 14 * HUGE_PAGE)
    assert map_huge(file.fileno(), HUGE_PAGE, SIZE) is None


def test_what_is_small_is_not_mapped(file: BinaryIO, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped_huge(monkeypatch, 16 * HUGE_PAGE)
    assert map_huge(file.fileno(), HUGE_PAGE, SIZE - HUGE_PAGE) is None


def test_a_system_that_does_not_tell_is_not_trusted(file: BinaryIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "_SMAPS", Path("/nowhere"))
    assert map_huge(file.fileno(), HUGE_PAGE, SIZE) is None


@pytest.mark.parametrize(
    ("address", "size"),
    [
        (0x7F0000000000, 2048),
        (0x7F0000200000, 2048),
        (0x7F0000400000, 6144),
        (0x7F0000B00000, 0),
        (0x7F0000A00000, 0),
    ],
)
def test_huge_pages_are_counted_in_the_right_mapping(address: int, size: int) -> None:
    assert mapped._mapped_huge(address, SMAPS.splitlines()) == 1024 * size
