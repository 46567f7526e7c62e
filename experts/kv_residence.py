"""KvResidence: the books of an accelerator's pool of KV blocks, where it has fewer of them than there are logical ones.

A logical block is resident where a block of the pool holds it, and saved where its place in RAM holds the same. What is
neither holds nothing that anybody may want. Numbers only: who keeps these books moves the bytes.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Blocks = NDArray[np.int64]
_NOWHERE = -1


class KvResidence:
    """Of logical blocks 0 .. num_blocks - 1 in blocks 0 .. pool - 1 of an accelerator, which may be written only there.

    A step begins; what it uses and is not resident is admitted, in place of the coldest blocks where none is free; and
    what it writes is named. A step that is begun again finds what was done already.
    """

    def __init__(self, num_blocks: int, pool: int) -> None:
        self._at = np.full(num_blocks, _NOWHERE)  # by logical block
        self._holds = np.full(pool, _NOWHERE)  # by block of the pool
        self._free = list(range(pool))[::-1]
        self._saved = np.zeros(num_blocks, np.bool_)
        self._last_use = np.full(num_blocks, -1)
        self._begun = 0  # what the last uses of this step begin with

    @property
    def num_free(self) -> int:
        """Blocks of the pool that hold nothing."""
        return len(self._free)

    def begin(self, blocks: Blocks, depths: Blocks, held: NDArray[np.bool_]) -> Blocks:
        """Begin a step that uses `blocks` [N], which may be repeated; those that are not resident, each once.

        depths: which block of its sequence each is; a sequence is left tail first, so its tail is colder than its head.
        held: whether earlier steps wrote there what this one reads. Raises RuntimeError if that is neither resident nor
        saved.
        """
        away = self._at[blocks] == _NOWHERE
        lost = blocks[away & held & ~self._saved[blocks]]
        if len(lost):
            raise RuntimeError(f"KV blocks {np.unique(lost).tolist()} are neither on the accelerator nor in RAM")
        span = len(self._at)
        self._begun += span
        self._last_use[blocks] = self._begun + span - 1 - depths
        self._saved[blocks[~held]] = False
        absent: Blocks = np.unique(blocks[away])
        return absent

    def coldest(self, count: int) -> Blocks:
        """Resident blocks that the step does not use, those that were used least recently.

        Raises RuntimeError if there are fewer: the step uses more than the pool has.
        """
        resident = self._holds[self._holds != _NOWHERE]
        idle = resident[self._last_use[resident] < self._begun]
        if len(idle) < count:
            raise RuntimeError(f"a step uses more KV blocks at once than the {len(self._holds)} of an accelerator")
        coldest: Blocks = idle[np.argsort(self._last_use[idle])[:count]]
        return coldest

    def is_saved(self, blocks: Blocks) -> NDArray[np.bool_]:
        """Whether what each holds is in RAM."""
        saved: NDArray[np.bool_] = self._saved[blocks]
        return saved

    def evict(self, blocks: Blocks) -> None:
        """Resident blocks leave the pool; what they held is saved by now, or will be before anyone asks."""
        places = self._at[blocks]
        self._holds[places] = self._at[blocks] = _NOWHERE
        self._saved[blocks] = True
        self._free += places.tolist()

    def take(self, count: int) -> Blocks:
        """Free blocks of the pool; they stay free until `admit`."""
        return np.array(self._free[len(self._free) - count :], np.int64)

    def admit(self, blocks: Blocks) -> None:
        """Have blocks reside where `take` has told of as many."""
        places = self.take(len(blocks))
        del self._free[len(self._free) - len(blocks) :]
        self._at[blocks], self._holds[places] = places, blocks

    def write(self, blocks: Blocks) -> None:
        """The step writes to resident blocks: what RAM has of them is out of date."""
        self._saved[blocks] = False

    def places(self, blocks: Blocks) -> Blocks:
        """Where blocks of any shape reside. For those that do not, and are not read, some block."""
        places: Blocks = np.maximum(self._at[blocks], 0)
        return places

    def check_integrity(self, wanted: Iterable[int] = ()) -> None:
        """Audit the books. wanted: blocks that must hold something. Raises RuntimeError with the numbers."""
        problems = []
        resident = np.flatnonzero(self._at != _NOWHERE)
        if not np.array_equal(self._holds[self._at[resident]], resident):
            wrong = resident[self._holds[self._at[resident]] != resident]
            problems.append(f"blocks {wrong.tolist()} reside where others do")
        empty = np.flatnonzero(self._holds == _NOWHERE)
        if sorted(self._free) != empty.tolist():
            problems.append(f"blocks {sorted(self._free)} of the pool are free, but {empty.tolist()} hold nothing")
        if len(resident) + len(empty) != len(self._holds):
            problems.append(f"{len(resident)} resident + {len(empty)} empty blocks are not {len(self._holds)}")
        lost = [block for block in wanted if self._at[block] == _NOWHERE and not self._saved[block]]
        if lost:
            problems.append(f"blocks {lost} are neither resident nor saved")
        if problems:
            raise RuntimeError("the residence of KV blocks is inconsistent: " + "; ".join(problems))
