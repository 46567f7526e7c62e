"""Activations as the records that kinds of weights read, and the norm that makes them."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..tensors import SPAN, Record
from .fused import LANES, add_lanes, add_up, divide, square_root

_SMALLEST = 2.0**-100  # a span below it is all zero, so that 127 / amax stays finite


def to_record(x: Tensor, out: Record, count: Tensor) -> None:
    """See `Kernels.to_record`."""
    tokens = int(count)
    write_record(x[:tokens], out, slice(tokens))


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Record, count: Tensor) -> None:
    """See `Kernels.rms_norm`."""
    tokens = int(count)
    write_record(normed(x[:tokens], weight, eps), out, slice(tokens))


def write_record(x: Tensor, out: Record, rows: slice | Tensor) -> None:
    """x [rows, n] to these rows of each form that `out` has, padded with zeros."""
    padded = pad(x, (0, -x.shape[1] % SPAN))
    if out.plain is not None:
        out.plain[rows] = padded.to(out.plain.dtype)
    if out.codes is not None and out.scales is not None:
        out.codes[rows], out.scales[rows] = quantised(padded)


def take_rows(record: Record, rows: slice | Tensor) -> Record:
    """Some rows of each form."""
    forms = (record.plain, record.codes, record.scales)
    return Record(*(None if form is None else form[rows] for form in forms))


def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [rows, whole spans] -> int8 codes of that shape, float32 scales [rows, spans]; a NaN shows in the scale."""
    spans = x.unflatten(1, (-1, SPAN))
    largest = spans.abs().amax(2)
    largest = torch.where(largest < _SMALLEST, 0, largest)
    inverse = torch.where(largest == 0, 0, divide(127, largest))
    codes = (spans * inverse[..., None]).round().nan_to_num(0)
    return codes.to(torch.int8).flatten(1), divide(largest, 127)


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [rows, n] / sqrt(mean of squares + eps) * weight."""
    spans = pad(x, (0, -x.shape[1] % SPAN)).unflatten(1, (-1, SPAN)).transpose(0, 1)
    squares = add_up(spans.double().square(), torch.zeros_like(spans[0]))
    a, b, c, d = squares.unflatten(1, (-1, LANES)).unbind(1)
    mean = divide(add_lanes((a + b) + (c + d)), x.shape[1])
    factor = divide(1, square_root(mean + eps))
    return x * factor[:, None] * weight
