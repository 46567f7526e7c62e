"""DeviceExperts: the pairs (token, expert) of a step that one accelerator computes for the host.

The host sends its records of the tokens as they are, and a list of pairs; what comes back is a row for each pair, in
the order of the list. The accelerator works meanwhile: `start` queues everything and waits for nothing.
"""

from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from ..cpu_kernels.layout import Record as Form
from ..cpu_kernels.layout import padded
from ..gpu_kernels.device import Accelerator, Cost, Event
from ..gpu_kernels.kernels import Kernels
from ..gpu_kernels.tensors import Groups, most_blocks
from . import device_costs as costs
from .bank import Bank, parts_of
from .buffers import Rows
from .device_buffers import BLOCK
from .device_forms import records_of
from .device_memory import DeviceMemory
from .device_rows import DeviceRows, as_record, one_plain
from .pack import PackedWeights
from .spec import ModelSpec

_LINE = 16  # int32 of a cache line: parts of a list begin on one

Indices = NDArray[np.int64]


class DeviceExperts:
    """layers: whose experts may lie there. tokens: of the largest step; normed: the host's records of them."""

    def __init__(
        self,
        accelerator: Accelerator,
        kernels: Kernels,
        spec: ModelSpec,
        weights: PackedWeights,
        layers: tuple[int, ...],
        tokens: int,
        normed: Rows,
    ) -> None:
        assert spec.routing is not None
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
        self._list = memory.empty((3 * _LINE + 2 * pairs,), torch.int32)
        self._told = accelerator.pinned((3 * _LINE + 2 * pairs,), torch.int32)
        self._memory = memory

    def start(self, layer: int, bank: Bank, tokens: int, rows: Indices, ids: Indices, out: torch.Tensor) -> Event:
        """Compute experts `ids` [n] for tokens `rows` [n] of the first `tokens` ones into host memory `out` [n, padded
        hidden size], which is there after the event."""
        n = len(ids)
        self._send(layer, tokens, rows, ids)
        ids_at = _LINE + -(-n // _LINE) * _LINE
        count, index = self._list[:1], self._list[_LINE : _LINE + n]
        x = {form: self._x[form][:n] for form in self._forms[layer]}
        blocks = most_blocks(n, len(bank.experts), BLOCK)
        groups = Groups(self._order[: blocks * BLOCK], self._slots[:blocks], BLOCK, 1)
        record, inner = as_record(x, self._hidden), self._inner.record(self._inner_forms[layer], n)
        gate, up, down = bank.matrices
        launch, kernels, distinct = self._accelerator.launch, self._kernels, len(np.unique(ids))
        launch(partial(_gather, self._tokens, index, x), Cost(2.0 * sum(rows.numel() for rows in x.values())))
        chosen = self._list[ids_at : ids_at + n].view(n, 1)
        launch(partial(kernels.align, chosen, bank.table, groups, count), Cost(8.0 * n))
        launch(
            partial(kernels.gate_up, record, gate, up, groups, inner, count), costs.products((gate, up), n, distinct)
        )
        outs = self._outs[:n]
        launch(
            partial(kernels.down, inner, down, groups, outs[:, : self._hidden], count),
            costs.products((down,), n, distinct),
        )
        self._accelerator.wait("from", self._accelerator.record("compute"))
        self._accelerator.copy(out, outs, "from")
        return self._accelerator.record("from")

    def _send(self, layer: int, tokens: int, rows: Indices, ids: Indices) -> None:
        n, told = len(ids), self._told.numpy()
        ids_at = _LINE + -(-n // _LINE) * _LINE
        told[0], told[_LINE : _LINE + n], told[ids_at : ids_at + n] = n, rows, ids
        self._accelerator.copy(self._list[: ids_at + n], self._told[: ids_at + n], "to")
        for form in self._forms[layer]:
            self._accelerator.copy(self._tokens[form][:tokens], self._sent[form][:tokens], "to")
        self._accelerator.wait("compute", self._accelerator.record("to"))

    def close(self) -> None:
        """Give the memory back."""
        self._memory.release()


def _gather(source: dict[Form, torch.Tensor], index: torch.Tensor, target: dict[Form, torch.Tensor]) -> None:
    for form, rows in target.items():
        torch.index_select(source[form], 0, index, out=rows)
