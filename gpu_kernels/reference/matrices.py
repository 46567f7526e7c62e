"""Products of activations and packed weights, and rows of these."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ..tensors import ROWS, SPAN, Matrix, Record
from .fused import add, add_up
from .records import take_rows
from .unpack import Numbers, unpack

_AT_ONCE = 1 << 22  # numbers of a product's terms: larger ones are computed some tiles after the others


def embed(tokens: Tensor, matrix: Matrix, out: Tensor, count: Tensor) -> None:
    """See `Kernels.embed`."""
    number = int(count)
    rows = tokens[:number].long()
    weights = unpack(matrix, matrix.tiles[rows // ROWS]).dense()[: matrix.columns]
    lanes = torch.arange(number, device=rows.device) * ROWS + rows % ROWS
    out[:number] = weights[:, lanes].T


def linear(
    x: Record,
    matrix: Matrix,
    out: Tensor,
    count: Tensor,
    *,
    bias: Tensor | None = None,
    limit: float = float("inf"),
    add: bool = False,
) -> None:
    """See `Kernels.linear`."""
    tokens = int(count)
    y = product(take_rows(x, slice(tokens)), matrix, matrix.tiles)
    if bias is not None:
        y = y + bias
    y = y.clamp(-limit, limit)
    out[:tokens] = out[:tokens] + y if add else y


def product(x: Record, matrix: Matrix, tiles: Tensor) -> Tensor:
    """x W^T, float32 [tokens, rows]; tiles: of the matrix, or of one in the bank that it is."""
    tokens, multiply = _multiplication(x, matrix)
    step = max(_AT_ONCE // max(tokens * matrix.spans * SPAN, 1), 1)
    parts = [multiply(unpack(matrix, tiles[first : first + step])) for first in range(0, len(tiles), step)]
    return torch.cat(parts, 1)[:, : matrix.rows]


def _multiplication(x: Record, matrix: Matrix) -> tuple[int, Callable[[Numbers], Tensor]]:
    """How many tokens x has, and its product with some tiles of the matrix."""
    if matrix.kind.codes is not None:
        assert x.codes is not None and x.scales is not None, f"{matrix.name} reads codes"
        return len(x.codes), partial(_by_codes, x.codes, x.scales)
    assert x.plain is not None, f"{matrix.name} reads floats"
    if matrix.kind.record == "bf16":
        return len(x.plain), partial(_by_columns, x.plain.bfloat16().float(), _BY_PAIRS)
    assert x.plain.dtype == torch.float32, f"{matrix.name} reads float32"
    return len(x.plain), partial(_by_eights, x.plain) if matrix.name == "f8" else partial(_by_columns, x.plain, _BY_ONE)


def _by_codes(codes: Tensor, scales: Tensor, weights: Numbers) -> Tensor:
    """Integer dot products times their weights' scale, added up over a span, times the record's scale, added up."""
    assert weights.scales is not None
    each = SPAN // weights.columns
    # [groups, tokens, columns]; the sums of such integers are exact in float32, whatever their order
    inputs = codes.unflatten(1, (-1, weights.columns)).transpose(0, 1).float()
    dots = torch.bmm(inputs, weights.values.unflatten(0, (-1, weights.columns)))
    products = (dots.double() * weights.scales[:, None]).unflatten(0, (-1, each))  # [spans, each, tokens, rows]
    terms = [products]
    if weights.minima is not None:
        terms.append((inputs.double().sum(2, keepdim=True) * weights.minima[:, None]).unflatten(0, (-1, each)))
    values = add_up(torch.stack(terms, 2).flatten(1, 2).transpose(0, 1), products.new_zeros(()).float())
    return add_up(values.double() * scales.T[:, :, None], torch.zeros_like(values[0]))


# The order in which the columns of a span are added to each of two sums, first to the one, then to the other.
_BY_ONE = tuple(range(SPAN))
_BY_PAIRS = tuple(
    first + column for first in range(0, SPAN, 4) for column in (1, 3, 0, 2)
)  # of pairs the odd one first


def _by_columns(x: Tensor, order: Sequence[int], weights: Numbers) -> Tensor:
    inputs, values = (columns.unflatten(0, (-1, SPAN))[:, order] for columns in (x.T, weights.values))
    sums = x.new_zeros(2, len(x), weights.values.shape[1])
    for some, others in zip(inputs.double(), values.double(), strict=True):
        sums = add_up((some[:, :, None] * others[:, None]).unflatten(0, (-1, 2)), sums)
    return sums[0] + sums[1]


def _by_eights(x: Tensor, weights: Numbers) -> Tensor:
    """Four sums of a span, of the columns that are alike modulo 4, added up by halves, times the weights' scale."""
    assert weights.scales is not None
    inputs, values = (columns.double().unflatten(0, (-1, SPAN // 4, 4)) for columns in (x.T, weights.values))
    sums = x.new_zeros(inputs.shape[0], 4, len(x), weights.values.shape[1])
    for some, others in zip(inputs.unbind(1), values.unbind(1), strict=True):
        sums = add(some[..., None] * others[:, :, None], sums)
    first, second, third, fourth = sums.unbind(1)
    spans = ((first + second) + (third + fourth)).double() * weights.scales[:, None]
    return add_up(spans, torch.zeros_like(sums[0, 0]))
