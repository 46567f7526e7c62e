"""8-bit floats (E4M3): MODULE.weight with a scale, .weight_scale_inv or .weight_scale, by which it is multiplied.

A scale serves a block of rows and columns, the last of which may be cut short, or a row, or all of the matrix. Experts
may be stacked in one tensor, whose name then has no ".weight".
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...cpu_kernels.layout import SPAN
from ..checkpoint import JoinedTensor, Plane, RawTensor, Tensor
from ..fields import Fields
from ..scaled_blocks import Bytes, Floats, eights
from .parts import Parts, Tensors, values_of

Block = tuple[int, int]

SCALES = ("F32", "BF16", "F16", "F8_E8M0", "U8")
_NOT_A_NUMBER = 0x7F


def find_fp8(config: Fields, tensors: Tensors) -> Callable[[str], Tensor | None]:
    """See `quantisation.finder`."""
    kind = config.text("fmt", "e4m3")
    if kind not in ("e4m3", "float8_e4m3fn"):
        raise config.unsupported(
            "fmt", f"is {kind!r}, only 'e4m3' is supported; use the original model or a GGUF of it"
        )
    block = block_of(config, "weight_block_size")

    def find(name: str) -> Tensor | None:
        codes = tensors.get(name)
        return codes if codes is None or not is_fp8(codes) else join_fp8(Parts(tensors, codes), block)

    return find


def block_of(config: Fields, key: str) -> Block | None:
    """Rows and columns that share a scale, or None where the config has no such blocks."""
    if not config.has(key):
        return None
    size = config.get(key)
    if not isinstance(size, list) or len(size) != 2 or not all(type(n) is int and n > 0 for n in size):
        raise config.broken(key, f"is {size!r}, not two sizes")
    if size[1] % SPAN:
        raise config.unsupported(key, f"is {size}; only multiples of {SPAN} columns are supported")
    return size[0], size[1]


def is_fp8(tensor: RawTensor) -> bool:
    return tensor.format == "F8_E4M3" and len(tensor.shape) > 1


def join_fp8(parts: Parts, block: Block | None) -> Tensor:
    """The matrix, or bank of matrices, of the codes and the scale beside them."""
    codes = parts.codes
    *bank, rows, columns = codes.shape
    name = codes.name + ("_scale_inv" if f"{codes.name}_scale_inv" in parts.tensors else "_scale")
    shapes = [(*bank, rows, 1), (*bank, rows), (*bank, 1, 1), (*bank, 1), tuple(bank) or (1,)]
    if block:
        shapes.insert(0, (*bank, -(-rows // block[0]), -(-columns // block[1])))
    scale = parts.take(name, SCALES, *shapes)
    height, width = (rows, columns)
    if block and scale.shape == shapes[0]:
        height, width = block
    elif scale.shape[len(bank) :][:1] == (rows,):
        height = 1
    values = values_of(scale)
    plane = Plane(values.reshape(*bank, -1, values.shape[-1] if width < columns else 1), height)
    join = _Join(parts, scale.format, columns, width)
    return JoinedTensor(codes.name, codes.file, codes.shape, "FP8", (Plane(values_of(codes)), plane), join, rows)


@dataclass(frozen=True, slots=True)
class _Join:
    """Blocks of some rows from their codes and scales."""

    parts: Parts
    scale_format: str
    columns: int
    width: int  # columns that share a scale

    def __call__(self, codes: Bytes, scales: NDArray[np.generic]) -> Bytes:
        if ((codes & _NOT_A_NUMBER) == _NOT_A_NUMBER).any():
            raise self.parts.broken("holds codes that are not numbers")
        block = np.arange(0, self.columns, SPAN) // self.width
        return eights(codes, _as_floats(scales, self.scale_format)[:, block])


def _as_floats(scales: NDArray[np.generic], kind: str) -> Floats:
    if kind == "BF16":
        return (scales.astype(np.uint32) << 16).view(np.float32)
    if kind in ("U8", "F8_E8M0"):
        return np.ldexp(np.float32(1), scales.astype(np.int32) - 127)
    return scales.astype(np.float32)
