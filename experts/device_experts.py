"""DeviceExperts: the pairs (token, expert) of a step that one accelerator computes for the host.

The host sends its records of the tokens as they are, and a list of pairs; what comes back is a row for each pair, in
the order of the list. The accelerator works meanwhile: `start` queues everything and waits for nothing. Launches may be
made for more pairs than there are, see `Graphs`.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from ..cpu_kernels.layout import Record as Form
from ..cpu_kernels.layout import padded
from ..gpu_kernels.device import Accelerator, Cost, Event
from ..gpu_kernels.kernels import Kernels
from ..gpu_kernels.tensors import Groups, Matrix, most_blocks
from . import device_costs as costs
from .bank import Bank, parts_of
from .buffers import Rows
from .device_buffers import BLOCK
from .device_forms import records_of
from .device_memory import DeviceMemory
from .device_rows import DeviceRows, as_record, one_plain
from .graphs import Graphs
from .pack import PackedWeights
from .spec import ModelSpec
from .staging import Group, Staging

_LINE = 16  # int32 of a cache line: parts of a list begin on one
_HEAD = 16 * _LINE  # of a list: how many pairs are in the bank, and in each group

Indices = NDArray[np.int64]


class DeviceExperts:
    """layers: whose experts may lie there. tokens: of the largest step; normed: the host's records of them; staging:
    for experts that are streamed, set where there are any."""

    def __init__(
        self,
        accelerator: Accelerator,
        kernels: Kernels,
        graphs: Graphs,
        spec: ModelSpec,
        weights: PackedWeights,
        layers: tuple[int, ...],
        tokens: int,
        normed: Rows,
    ) -> None:
        assert spec.routing is not None
        self.staging: Staging | None = None
        self._graphs, self._top_k = graphs, spec.routing.top_k
        self._ids: Indices = np.zeros(0, np.int64)  # of the pairs that were sent last
        self._accelerator, self._kernels, self._hidden = accelerator, kernels, spec.hidden_size
        parts = {layer: parts_of(weights, layer) for layer in layers}
        self._forms = {layer: one_plain(records_of((gate, up))) for layer, (gate, up, _) in parts.items()}
        self._inner_forms = {layer: one_plain(records_of((down,))) for layer, (_, _, down) in parts.items()}
        pairs, memory = tokens * spec.routing.top_k, DeviceMemory(accelerator, "buffers of experts")
        read: frozenset[Form] = frozenset().union(*self._forms.values())
        self._sent = {form: torch.from_numpy(normed.forms[form]) for form in sorted(read)}
        widths = {form: rows.shape[1] for form, rows in self._sent.items()}
        self._tokens = {form: memory.empty((tokens, width), torch.uint8) for form, width in widths.items()}
        self._x = {form: memory.empty((pairs, width), torch.uint8) for form, width in widths.items()}
        inner: frozenset[Form] = frozenset().union(*self._inner_forms.values())
        self._inner = DeviceRows(memory, pairs, spec.moe_intermediate_size, inner)
        self._outs = memory.empty((pairs, padded(spec.hidden_size)), torch.float32)
        blocks = most_blocks(pairs, spec.routing.num_experts, BLOCK)
        self._order = memory.empty((blocks * BLOCK,), torch.int32)
        self._slots = memory.empty((blocks,), torch.int32)
        self._list = memory.empty((_HEAD + 2 * _lines(pairs),), torch.int32)
        self._told = accelerator.pinned((_HEAD + 2 * _lines(pairs),), torch.int32)
        self._memory = memory

    @property
    def layers(self) -> frozenset[int]:
        """Whose experts may lie there."""
        return frozenset(self._forms)

    def start(
        self,
        layer: int,
        bank: Bank | None,
        tokens: int,
        rows: Indices,
        ids: Indices,
        out: torch.Tensor,
        groups: Sequence[Group] = (),
    ) -> Event:
        """Compute experts `ids` [n] for tokens `rows` [n] of the first `tokens` ones into host memory `out` [n, padded
        hidden size], which is there after the event. First come the pairs whose expert is in the bank; groups: experts
        to be streamed, in whose order the other pairs come."""
        here = _pairs_of(ids, groups)
        pairs = self._graphs.rows * self._top_k if self._graphs.rows and not groups else len(ids)  # of launches
        self._send(layer, tokens, rows, ids, here, pairs)
        if groups:
            self._gather(layer, pairs)
            self._compute_groups(layer, bank, here, groups, out)
        else:
            assert bank is not None
            self._graphs.run((layer, pairs), partial(self._compute_all, layer, bank, pairs))
            self._fetch(slice(0, here[0]), out)
        return self._accelerator.record("from")

    def _compute_all(self, layer: int, bank: Bank, pairs: int) -> None:
        """All have their experts in the bank."""
        self._gather(layer, pairs)
        self._compute(layer, bank.matrices, bank.table, slice(0, pairs), 0, pairs)

    def _compute_groups(
        self, layer: int, bank: Bank | None, here: Sequence[int], groups: Sequence[Group], out: torch.Tensor
    ) -> None:
        first, total = here[0], sum(here)
        if first:
            assert bank is not None
            self._compute(layer, bank.matrices, bank.table, slice(0, first), 0, total)
            self._fetch(slice(0, first), out)
        assert self.staging is not None
        tables = self.staging.announce(groups)
        for number, (group, table) in enumerate(zip(groups, tables, strict=True), 1):
            matrices, last = self.staging.bring(layer, group), first + here[number]
            self._compute(layer, matrices, table, slice(first, last), number, total)
            self._fetch(slice(first, last), out)
            self.staging.leave()
            first = last

    def _gather(self, layer: int, pairs: int) -> None:
        index = self._list[_HEAD : _HEAD + pairs]
        x = {form: self._x[form][:pairs] for form in self._forms[layer]}
        row_bytes = sum(rows.shape[1] for rows in x.values())
        self._accelerator.launch(partial(_gather, self._tokens, index, x), lambda: self._gathering(row_bytes))

    def _compute(
        self,
        layer: int,
        matrices: tuple[Matrix, Matrix, Matrix],
        table: torch.Tensor,
        pairs: slice,
        number: int,
        total: int,
    ) -> None:
        """Pairs of the list of so many in total, whose experts have slots by a table; number: of their count in it."""
        n, (gate, up, down) = pairs.stop - pairs.start, matrices
        blocks = most_blocks(n, len(gate.tiles), BLOCK)
        groups = Groups(self._order[: blocks * BLOCK], self._slots[:blocks], BLOCK, 1)
        x = as_record({form: self._x[form][pairs] for form in self._forms[layer]}, self._hidden)
        inner, outs = self._inner.record(self._inner_forms[layer], n), self._outs[pairs]
        launch, kernels = self._accelerator.launch, self._kernels
        ids_at, count = _HEAD + _lines(total), self._list[number : number + 1]
        chosen = self._list[ids_at + pairs.start : ids_at + pairs.stop].view(n, 1)
        launch(partial(kernels.align, chosen, table, groups, count), Cost(8.0 * n))
        gate_up = partial(kernels.gate_up, x, gate, up, groups, inner, count)
        launch(gate_up, partial(self._cost, (gate, up), pairs))
        weighted = partial(kernels.down, inner, down, groups, outs[:, : self._hidden], count)
        launch(weighted, partial(self._cost, (down,), pairs))

    def _gathering(self, row_bytes: int) -> Cost:
        return Cost(2.0 * row_bytes * len(self._ids))

    def _cost(self, matrices: Sequence[Matrix], pairs: slice) -> Cost:
        """Of what was sent last, which may be fewer pairs."""
        return costs.routed(matrices, self._ids[pairs])

    def _fetch(self, pairs: slice, out: torch.Tensor) -> None:
        self._accelerator.wait("from", self._accelerator.record("compute"))
        self._accelerator.copy(out[pairs], self._outs[pairs], "from")

    def _send(self, layer: int, tokens: int, rows: Indices, ids: Indices, counts: Sequence[int], pairs: int) -> None:
        """The list has room for so many pairs; those beyond the last are of any token."""
        n, told, self._ids = len(ids), self._told.numpy(), ids
        ids_at = _HEAD + _lines(pairs)
        told[: len(counts)] = counts
        told[_HEAD : _HEAD + n], told[ids_at : ids_at + n] = rows, ids
        told[_HEAD + n : _HEAD + pairs] = 0
        self._accelerator.copy(self._list[: ids_at + n], self._told[: ids_at + n], "to")
        for form in self._forms[layer]:
            self._accelerator.copy(self._tokens[form][:tokens], self._sent[form][:tokens], "to")
        self._accelerator.wait("compute", self._accelerator.record("to"))

    def close(self) -> None:
        """Give the memory back."""
        self._memory.release()


def _lines(size: int) -> int:
    """So many int32 in whole lines."""
    return -(-size // _LINE) * _LINE


def _pairs_of(ids: Indices, groups: Sequence[Group]) -> list[int]:
    """How many are in the bank, and in each group."""
    streamed = [int(np.isin(ids, group).sum()) for group in groups]
    return [len(ids) - sum(streamed), *streamed]


def _gather(source: dict[Form, torch.Tensor], index: torch.Tensor, target: dict[Form, torch.Tensor]) -> None:
    for form, rows in target.items():
        torch.index_select(source[form], 0, index, out=rows)
