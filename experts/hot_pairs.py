"""HotPairs: the pairs (token, choice) of a split layer that one accelerator computes, bank by bank."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .bank import Bank
from .streaming import Streaming

Indices = NDArray[np.int64]


@dataclass(slots=True)
class HotPairs:
    """layer; bank: of what is resident, None if nothing is; numbers: of the pairs whose expert is. `stream` adds
    those of experts that are brought for this step."""

    layer: int
    bank: Bank | None
    numbers: Indices
    _groups: list[Indices] = field(default_factory=list)
    _streamed: list[int] = field(default_factory=list)
    _streaming: Streaming | None = None

    def stream(self, streaming: Streaming, experts: Sequence[int], ids: Indices) -> None:
        """experts: the streamed ones; ids: of all pairs."""
        self._streaming, self._streamed = streaming, list(experts)
        groups = streaming.groups(experts)
        self._groups = [np.flatnonzero(np.isin(ids, group)) for group in groups]

    @property
    def pairs(self) -> Indices:
        """Numbers of all pairs, those of a bank together."""
        return np.concatenate([self.numbers, *self._groups])

    @property
    def sizes(self) -> list[int]:
        """How many pairs each bank has."""
        resident = [len(self.numbers)] if len(self.numbers) else []
        return resident + [len(group) for group in self._groups]

    def banks(self) -> Iterator[Bank]:
        """See `Streaming.banks`."""
        if len(self.numbers) and self.bank is not None:
            yield self.bank
        if self._streaming is not None:
            yield from self._streaming.banks(self.layer, self._streamed)
