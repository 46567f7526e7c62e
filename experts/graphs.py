"""Graphs: launches on one accelerator that are captured the first time and replayed in later steps.

A graph is made for a number of rows, into which all steps of that many tokens or fewer fit: kernels find on the device
how many there are, and leave the other rows as they are. So it is with the width of block tables. What else differs
from step to step is read there too: tokens, positions, blocks, the slots of experts. So swapped experts need no new
graph, but other memory does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ..gpu_kernels.device import Accelerator
from ..gpu_kernels.kernels import Kernels
from .step_inputs import StepLimits

Key = tuple[int, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Graph:
    replay: Callable[[], object]
    result: Any  # of the work when it was captured


class Graphs:
    """can_capture: whether there are graphs at all. rows: that launches of the step under way are made for; 0 where it
    is no step of decoding alone, and its launches go one by one."""

    def __init__(self, accelerator: Accelerator, kernels: Kernels, limits: StepLimits) -> None:
        self.can_capture = accelerator.replays_calls or not kernels.waits
        self.rows = 0
        self._accelerator, self._most = accelerator, min(limits.sequences, limits.tokens)
        self._graphs: dict[Key, _Graph] = {}
        self._layout = 0

    def begin(self, tokens: int, logits: int, layout: int) -> None:
        """A step begins. layout: changes where memory that kernels use does; earlier graphs are given up then."""
        if layout != self._layout:
            self.drop()
            self._layout = layout
        decodes = tokens == logits <= self._most
        self.rows = min(rounded(tokens), self._most) if self.can_capture and decodes else 0

    def run(self, key: Key, work: Callable[[], T]) -> T:
        """Queue the launches of `work`, which are the same each time for a key; what it returned when they were
        captured. Raises what launches do, and then there is no graph of them."""
        if not self.rows:
            return work()
        found = self._graphs.get(key)
        if found is not None:
            found.replay()
            result: T = found.result
            return result
        results: list[T] = []
        replay = self._accelerator.capture(lambda: results.append(work()))
        self._graphs[key] = _Graph(replay, results[-1])
        return results[-1]

    def drop(self) -> None:
        self._graphs.clear()


def rounded(count: int) -> int:
    """The sizes that graphs are made for: the least power of two that is not below."""
    return 1 << max(count - 1, 0).bit_length()
