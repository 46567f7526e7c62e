"""The packed store: a file for each model with its packed weights, read back by later starts instead of packing again.

    magic, version, fingerprint, layout, size   64 + 24 bytes: what the file is, and of what
    checksums                                   of each chunk, uint64 (`cpu_kernels.checksum`)
    checksum of all that                        crc32, uint32; then zeros up to a huge page
    arena                                       as it lies in memory, to the end of the file

The table of matrices is not read from the file: it follows from the model, and `layout` is a digest of it, of the
model's spec, of what its config says of quantisation, and of the sources that pack. So a file either fits this model
and this version exactly, or it is packed again.

The arena is mapped where the system maps it in huge pages: it is there at once and takes no memory twice. From small
pages decoding was measured 12 to 18 % slower, so there it is read into memory that has huge ones. A file that is
replaced or removed lives on for those who have mapped it. On a machine with several memory nodes it is always read, by
threads that are bound to the node of what they read: pages of a mapping lie wherever somebody first read the file.
"""

import hashlib
import json
import logging
import os
import shutil
import struct
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..cpu_kernels import headers, layout, packing
from ..cpu_kernels.checksum import checksum
from ..cpu_kernels.crew import Crew
from ..cpu_kernels.seating import Seating
from ..placement.files import claimed, remove_parts_of, replacing
from .mapped import HUGE_PAGE, map_huge
from .memory import arena
from .model import Model
from .pack import PackedWeights, Slot, arena_bytes, slots_of
from .progress import Progress
from .quantisation import QUANTISATION

logger = logging.getLogger(__name__)

MAGIC = b"ISOTHERM"
VERSION = 2  # of this file's format
CHUNK = 1 << 22  # bytes that are read, written and checked at a time
SYNCED = 1 << 25  # bytes after which the disk is waited for: so it never has much to catch up with when that must end
NOTE = ".model"  # suffix of the file that says where a store's checkpoint lies
SPARE = 2 << 30  # bytes of the disk that stores leave free, or a twentieth of it where that is less
_HEAD = struct.Struct("<8sQ32s32sQ")
_SUM = 8  # bytes of a chunk's checksum


class StoreError(Exception):
    """A store that cannot be used, or not be written; the text says why."""


class StoreBusyError(StoreError):
    """Another process is writing the store."""


@dataclass(frozen=True, slots=True)
class PackedStore:
    """The store of one model below `folder`. Files of other models there may be removed to make room."""

    folder: Path
    model: Model

    @property
    def path(self) -> Path:
        """One file for each checkpoint, so that a store of another version is replaced."""
        return self.folder / f"{self.model.checkpoint.fingerprint[:32]}.packed"

    def load(self, threads: int | Seating = 1, progress: Progress | None = None) -> PackedWeights:
        """The weights as they were saved; the checkpoint's are not read.

        Raises StoreError for a file that is damaged or not of this model and version, OSError where it cannot be read.
        """
        seating = Seating.of(threads)
        slots = slots_of(self.model, seating.nodes)
        size = arena_bytes(slots)
        with self.path.open("rb", buffering=0) as file:
            sums = _read_head(file, _head(self.model, slots))
            base = _arena_at(len(sums))
            mapped = map_huge(file.fileno(), base, size) if seating.nodes == 1 else None
            memory = arena(size) if mapped is None else mapped

            def read(number: int) -> int:
                chunk = _chunk(memory, number)
                if mapped is None and not _fill(file, chunk.data, base + number * CHUNK):
                    raise StoreError("it is cut short")
                if checksum(chunk) != sums[number]:
                    raise StoreError(f"the checksum of its chunk {number} is wrong")
                return chunk.nbytes

            _for_chunks(read, size, seating, partial(progress, "reading packed weights") if progress else None)
        self._note_use()
        return PackedWeights.of(slots, memory)

    def fault(self, nodes: int) -> str | None:
        """Why what is there cannot be loaded at so many memory nodes, as far as its head tells; None if it can, or if
        nothing is there."""
        try:
            with self.path.open("rb", buffering=0) as file:
                _read_head(file, _head(self.model, slots_of(self.model, nodes)))
        except FileNotFoundError:
            return None
        except (StoreError, OSError) as error:
            return str(error)
        return None

    def save(self, weights: PackedWeights, threads: int | Seating = 1, progress: Progress | None = None) -> None:
        """Write the weights to the disk. Until all of it is there the file has another name, and none if it fails.

        progress: may raise to stop. Raises StoreBusyError where another process is writing it, StoreError where the
        disk is too full, OSError where it cannot be written.
        """
        with claimed(self.path.with_suffix(".lock")) as held:
            if not held:
                raise StoreBusyError("another process is writing it")
            self._make_room(weights.nbytes)
            with replacing(self.path) as file:
                self._write(file, weights, Seating.of(threads), progress)
            self._note_use()

    def _note_use(self) -> None:
        """Say when the store was used, and where its checkpoint lies: by these it is removed one day."""
        path, note = os.fsencode(self.model.checkpoint.path.resolve()), self.path.with_suffix(NOTE)
        with suppress(OSError):  # no more comes of it than that the file goes sooner
            os.utime(self.path)
            if not note.exists() or note.read_bytes() != path:
                with replacing(note) as file:
                    file.write(path)

    def _write(self, file: BinaryIO, weights: PackedWeights, seating: Seating, progress: Progress | None) -> None:
        memory = weights.arena
        sums = np.zeros(_chunks(memory.nbytes), "<u8")
        base = _arena_at(len(sums))

        def write(number: int) -> int:
            chunk = _chunk(memory, number)
            sums[number] = checksum(chunk)
            _put(file, chunk.data, base + number * CHUNK)
            if (number + 1) * CHUNK // SYNCED > number * CHUNK // SYNCED:
                os.fdatasync(file.fileno())
            return chunk.nbytes

        _for_chunks(write, memory.nbytes, seating, partial(progress, "storing packed weights") if progress else None)
        head = _head(self.model, slots_of(self.model, weights.nodes)) + sums.tobytes()
        _put(file, head + zlib.crc32(head).to_bytes(4, "little"), 0)

    def _make_room(self, needed: int) -> None:
        """Remove what is in the way: what was here before, then stores of other models, those first that were not used
        for longest."""
        remove_parts_of(self.path)  # its lock is ours
        remove_parts(self.folder)
        others = sorted(set(self.folder.glob("*.packed")) - {self.path}, key=lambda path: path.stat().st_mtime)
        removable = [path for path in (self.path, *others) if path.exists()]
        while (lacking := _lacking(self.folder, needed)) > 0:
            if sum(path.stat().st_size for path in removable) < lacking:  # those that would not be enough stay
                raise StoreError(f"the disk needs {lacking >> 20} MiB more of free space")
            remove_store(removable.pop(0), "it makes room for another")


def remove_store(path: Path, reason: str) -> None:
    """Remove a store and say it in the log. Those who have mapped it keep what they have."""
    path.unlink(missing_ok=True)
    path.with_suffix(NOTE).unlink(missing_ok=True)
    logger.info("removed %s: %s", path, reason)


def remove_parts(folder: Path) -> None:
    """Remove what killed writers left."""
    for part in folder.glob("*.part"):
        with claimed(folder / (part.name.split(".")[0] + ".lock")) as held:
            if held:
                part.unlink(missing_ok=True)
                logger.info("removed %s: its writer was killed", part)


def _head(model: Model, slots: Sequence[Slot]) -> bytes:
    quantisation = json.dumps(model.checkpoint.metadata.get(QUANTISATION), sort_keys=True)
    digest = hashlib.sha256(f"{model.spec}{slots}{quantisation}".encode())
    for source in _sources():
        digest.update(source.read_bytes())
    return _HEAD.pack(MAGIC, VERSION, bytes.fromhex(model.checkpoint.fingerprint), digest.digest(), arena_bytes(slots))


def _sources() -> list[Path]:
    """The files that decide what the packed bytes are; others beside them do no harm."""
    own = sorted(Path(__file__).parent.rglob("*.py"))
    return [*own, *(Path(module.__file__) for module in (headers, layout, packing) if module.__file__)]


def _read_head(file: BinaryIO, expected: bytes) -> NDArray[np.uint64]:
    """The checksums of the chunks, once the head is as it should be."""
    magic, version, fingerprint, digest, size = _HEAD.unpack(expected)
    end = _HEAD.size + _SUM * _chunks(size)
    head = memoryview(bytearray(end + 4))
    if not _fill(file, head, 0):
        raise StoreError("it is cut short")
    found = _HEAD.unpack(head[: _HEAD.size])
    if found[0] != magic:
        raise StoreError("it is not a packed store")
    if found[2] != fingerprint:
        raise StoreError("it was packed from another checkpoint")
    if found[1] != version or found[3] != digest:
        raise StoreError("it was packed by another version, or for another number of memory nodes")
    if found[4] != size or os.fstat(file.fileno()).st_size != _arena_at(_chunks(size)) + size:
        raise StoreError("its size is wrong")
    if zlib.crc32(head[:end]) != int.from_bytes(head[end:], "little"):
        raise StoreError("the checksum of its head is wrong")
    return np.frombuffer(head[_HEAD.size : end], "<u8")


def _chunks(size: int) -> int:
    return -(-size // CHUNK)


def _chunk(memory: NDArray[np.uint8], number: int) -> NDArray[np.uint8]:
    return memory[number * CHUNK : (number + 1) * CHUNK]


def _arena_at(chunks: int) -> int:
    """Where the arena begins in a file of so many chunks."""
    return -(-(_HEAD.size + _SUM * chunks + 4) // HUGE_PAGE) * HUGE_PAGE


def _for_chunks(
    work: Callable[[int], int], size: int, seating: Seating, progress: Callable[[int, int], None] | None
) -> None:
    done, part = 0, size // seating.nodes
    with Crew(seating) as crew:
        for nbytes in crew.map(work, range(_chunks(size)), lambda number: number * CHUNK // part):
            done += nbytes
            if progress:
                progress(done, size)


def _fill(file: BinaryIO, target: memoryview, offset: int) -> bool:
    """Read from `offset` until `target` is full; whether the file was long enough."""
    done = 0
    while done < target.nbytes:
        count = os.preadv(file.fileno(), [target[done:]], offset + done)
        if count == 0:
            return False
        done += count
    return True


def _put(file: BinaryIO, source: bytes | memoryview, offset: int) -> None:
    done = 0
    while done < len(source):
        done += os.pwrite(file.fileno(), source[done:], offset + done)


def _lacking(folder: Path, needed: int) -> int:
    """Bytes that the disk lacks to hold so many more and still leave some free."""
    disk = shutil.disk_usage(folder)
    return needed + min(disk.total // 20, SPARE) - disk.free
