"""Files mapped for reading in huge pages, on systems and file systems that have them."""

import mmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

HUGE_PAGE = 1 << 21
_PROBES = 16  # places that are looked at
_SMAPS = Path("/proc/self/smaps")


class HugeMapping(mmap.mmap):
    """A file mapped for reading: pages that are dropped come back from it."""


def map_huge(file: int, offset: int, size: int) -> NDArray[np.uint8] | None:
    """uint8 [size] at `offset` of a file, a multiple of HUGE_PAGE; None where the system would map it in small pages.

    What is small itself is not mapped either. The file must be as long as that.
    """
    if size < _PROBES * HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE") or not _SMAPS.exists():
        return None
    mapped = HugeMapping(file, offset + size, mmap.MAP_SHARED, mmap.PROT_READ)
    try:
        mapped.madvise(mmap.MADV_HUGEPAGE)  # pages that are read from the disk come in this size then
    except OSError:  # a kernel without huge pages
        return None
    memory = np.frombuffer(mapped, np.uint8)[offset:]
    probes = np.linspace(0, size // HUGE_PAGE - 1, _PROBES, dtype=np.int64) * HUGE_PAGE
    memory[probes].sum()  # a look at a page maps all of it
    huge = _mapped_huge(memory.ctypes.data, _SMAPS.read_text().splitlines())
    return memory if huge >= 0.9 * _PROBES * HUGE_PAGE else None


def _mapped_huge(address: int, smaps: list[str]) -> int:
    """Bytes that are mapped in huge pages in the mapping around `address`, by the system's table of mappings."""
    inside = False
    for line in smaps:
        name, *fields = line.split()
        if not name.endswith(":"):
            begin, end = (int(part, 16) for part in name.split("-"))
            inside = begin <= address < end
        elif inside and name == "FilePmdMapped:":
            return 1024 * int(fields[0])
    return 0
