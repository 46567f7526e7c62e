"""TritonKernels: the ops of `..kernels` as launches of Triton kernels on the current stream of a card."""

from math import prod
from typing import Any

import torch

from ..kernels import Heads, KvCache, Sequences
from ..tensors import ROWS, SPAN, Groups, Matrix, Record
from .align import align_kernel
from .combine import combine_kernel
from .decode_attention import attend_by_segments, parts_shape
from .embed import embed_kernel
from .experts import down_kernel, gate_up_kernel
from .jit import EXACT
from .kv import store
from .layout import Layout, layout_of
from .linear import linear_kernel
from .norm import rms_norm_kernel
from .prefill_attention import attend_by_tiles
from .records import to_record_kernel
from .rope import rotate
from .route import route
from .sampling import sample

_COLUMNS = 1024  # of a program that adds up
_PAIRS = 1024  # that `align` looks at in a turn
_FEW = 16  # tokens whose attention is split over their contexts, since there are too few programs else


class TritonKernels:
    """Sizes of launches depend on the tensors' shapes alone, so that they can be captured."""

    waits = False
    rotate = staticmethod(rotate)
    store = staticmethod(store)
    route = staticmethod(route)
    sample = staticmethod(sample)

    def __init__(self) -> None:
        # scratch of attention, by its size: a power of two, so that there are few. Captures hold it: none is replaced
        self._parts: dict[tuple[torch.device, int], torch.Tensor] = {}

    def embed(self, tokens: torch.Tensor, matrix: Matrix, out: torch.Tensor, count: torch.Tensor) -> None:
        """See `Kernels`."""
        grid = (len(tokens), matrix.spans)
        size = _size(matrix)
        embed_kernel[grid](
            tokens,
            matrix.tiles,
            size[1],
            matrix.columns,
            out,
            out.stride(0),
            count,
            _layout(matrix),
            num_warps=1,
            **EXACT,
        )

    def to_record(self, x: torch.Tensor, out: Record, count: torch.Tensor) -> None:
        """See `Kernels`."""
        rows, columns = x.shape
        spans = _ceil(columns, SPAN)
        to_record_kernel[(rows, _ceil(spans, 4))](x, x.stride(0), columns, _target(out), count, SPANS=4, **EXACT)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, out: Record, count: torch.Tensor) -> None:
        """See `Kernels`."""
        rows, columns = x.shape
        rms_norm_kernel[(rows,)](x, x.stride(0), weight, columns, eps, _target(out), count, SPANS=8, **EXACT)

    def attend(
        self,
        q: torch.Tensor,
        cache: KvCache,
        heads: Heads,
        sequences: Sequences,
        out: torch.Tensor,
        count: torch.Tensor,
    ) -> None:
        """See `Kernels`."""
        if len(q) > _FEW:
            attend_by_tiles(q, cache, heads, sequences, out, count)
            return
        place = q.device, _power(prod(parts_shape(len(q), heads, sequences.tables.shape[1])))
        if place not in self._parts:
            self._parts[place] = torch.empty(place[1], device=q.device)
        attend_by_segments(q, cache, heads, sequences, out, count, self._parts[place])

    def linear(
        self,
        x: Record,
        matrix: Matrix,
        out: torch.Tensor,
        count: torch.Tensor,
        *,
        bias: torch.Tensor | None = None,
        limit: float = float("inf"),
        add: bool = False,
    ) -> None:
        """See `Kernels`."""
        tokens, layout = len(out), _layout(matrix)
        block, lines = _block(tokens, layout), _lines(tokens, layout)
        grid = (_ceil(matrix.rows, lines), _ceil(tokens, block))
        linear_kernel[grid](
            _source(x, matrix), matrix.tiles, _size(matrix), out, out.stride(0), matrix.rows, bias, limit, count,
            layout, M=block, N=lines, ADD=add, num_warps=_warps(block, lines), **EXACT,
        )  # fmt: skip

    def align(self, ids: torch.Tensor, slots: torch.Tensor, out: Groups, count: torch.Tensor) -> None:
        """See `Kernels`."""
        experts, most = len(slots), ids.numel()
        align_kernel[(experts + 1,)](
            ids, out.top_k, slots, experts, out.order, out.slots, len(out.slots), count,
            BLOCK=out.block, CHUNK=min(_power(most), _PAIRS), BINS=_power(experts + 1), **EXACT,
        )  # fmt: skip

    def gate_up(self, x: Record, gate: Matrix, up: Matrix, groups: Groups, out: Record, count: torch.Tensor) -> None:
        """See `Kernels`."""
        grid = (_ceil(gate.rows, SPAN), len(groups.slots))
        gate_up_kernel[grid](
            _source(x, gate, up), groups.top_k, gate.tiles, _slot_bytes(gate), _size(gate), up.tiles,
            _slot_bytes(up), _size(up), groups.order, groups.slots, _target(out), gate.rows, count,
            _layout(gate), _layout(up), M=groups.block, num_warps=_warps(groups.block, SPAN), **EXACT,
        )  # fmt: skip

    def down(self, inner: Record, bank: Matrix, groups: Groups, out: torch.Tensor, count: torch.Tensor) -> None:
        """See `Kernels`."""
        layout = _layout(bank)
        lines = _lines(groups.block, layout)
        grid = (_ceil(bank.rows, lines), len(groups.slots))
        down_kernel[grid](
            _source(inner, bank), groups.top_k, bank.tiles, _slot_bytes(bank), _size(bank), groups.order, groups.slots,
            out, out.stride(0), bank.rows, count,
            layout, M=groups.block, N=lines, num_warps=_warps(groups.block, lines), **EXACT,
        )  # fmt: skip

    def combine(
        self,
        x: torch.Tensor,
        outs: torch.Tensor,
        weights: torch.Tensor | None,
        gate: torch.Tensor | None,
        count: torch.Tensor,
    ) -> None:
        """See `Kernels`."""
        tokens, columns = x.shape
        combine_kernel[(tokens, _ceil(columns, _COLUMNS))](
            x, x.stride(0), columns, outs, outs.stride(0), weights, gate, 0 if gate is None else gate.stride(0), count,
            K=1 if weights is None else weights.shape[1], N=_COLUMNS, **EXACT,
        )  # fmt: skip


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _power(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


def _block(tokens: int, layout: Layout) -> int:
    """Tokens of a program: few are multiplied one by one, more by the matrix units, which floats do without."""
    return _power(tokens) if tokens <= 4 else min(max(_power(tokens), 16), 64 if layout.form == "codes" else 32)


def _lines(tokens: int, layout: Layout) -> int:
    """Rows of weights of a program: as many as there are registers for."""
    return ROWS if tokens == 1 else 4 * ROWS if tokens > 4 and layout.form == "codes" else 2 * ROWS


def _warps(tokens: int, lines: int) -> int:
    return 1 if tokens * lines == ROWS else 4 if tokens < 64 else 8


def _layout(matrix: Matrix) -> Layout:
    return layout_of(matrix.name, matrix.kind)


def _size(matrix: Matrix) -> tuple[int, int, int]:
    """Tiles, bytes of a tile, spans."""
    tiles, units, unit_bytes = matrix.tiles.shape[-3:]
    return tiles, units * unit_bytes, matrix.spans


def _slot_bytes(bank: Matrix) -> int:
    return bank.tiles.stride(0)


def _source(x: Record, *matrices: Matrix) -> tuple[Any, ...]:
    """A record as kernels take it, after a look whether it has what the matrices read."""
    for matrix in matrices:
        form = matrix.kind.record
        if form == "q8" and (x.codes is None or x.scales is None):
            raise ValueError(f"weights of kind {matrix.name!r} read codes and scales, and the record lacks them")
        if form != "q8" and (x.plain is None or (form == "plain" and x.plain.dtype != torch.float32)):
            raise ValueError(f"weights of kind {matrix.name!r} read a record {form!r}, and the record lacks it")
    return _fields(x, torch.int32)


def _target(out: Record) -> tuple[Any, ...]:
    return _fields(out, torch.int16)


def _fields(record: Record, bfloats: torch.dtype) -> tuple[Any, ...]:
    """Codes, their stride, scales, theirs, plain values, theirs; bfloat16 is seen as `bfloats`."""
    fields: list[Any] = []
    for tensor in (record.codes, record.scales, record.plain):
        seen = tensor.view(bfloats) if tensor is not None and tensor.dtype == torch.bfloat16 else tensor
        fields += [seen, 0 if seen is None else seen.stride(0)]
    return tuple(fields)
