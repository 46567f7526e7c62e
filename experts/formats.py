"""The weight formats: one row each. A new format is a new row, and a packing if no runtime kind fits it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from ..cpu_kernels.layout import GROUP, SPAN
from .checkpoint import JoinedTensor, Tensor
from .errors import UnsupportedModelError
from .scaled_blocks import EIGHTS_BYTES, INTEGERS, dequantise_eights, encode_eights

PackedKind = Literal[
    "f32", "f16", "bf16", "f8", "q8", "q8b", "q4", "q4b", "q4m", "q4z", "q4zb", "q4k", "q5", "q5m", "q5k", "q6k", "q2",
    "q2k", "q3k", "iq4", "iq4k", "mx4", "nv4",
]  # fmt: skip
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

# Relative error of a matrix product, ||got - exact|| / ||exact||, and where it comes from.
FLOAT_ERROR = 1e-5  # float32 sums in another order; the weights themselves are exact
BFLOAT_ERROR = 0.003  # activations rounded to bfloat16, as the weights are, cost about 0.17 %
INT8_ERROR = 0.01  # activations rounded to int8 in spans of 64 cost about 0.6 %
REENCODED_ERROR = 0.014  # as INT8_ERROR, and the weights rounded to int8 in groups of 32 once more


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How a tensor format is laid out and what becomes of it.

    block: elements per block along a row; block_bytes: bytes of one block.
    dequantise: uint8 (..., bytes per row) -> float32 (..., elements per row).
    encode: float32 rows to the format's, None where no encoder is at hand.
    packed: the runtime kind it is packed into; exact: whether that kind holds the same numbers.
    product_error: the budget for the relative error of a matrix product with the packed weights.
    """

    name: str
    block: int
    block_bytes: int
    dequantise: Callable[[Bytes], Floats]
    packed: PackedKind
    exact: bool
    product_error: float
    encode: Callable[[Floats], Bytes] | None = None


_REENCODED = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")


def _row(name: str, packed: PackedKind, exact: bool, product_error: float) -> WeightFormat:
    kind = GGMLQuantizationType[name]
    block, block_bytes = GGML_QUANT_SIZES[kind]

    def dequantise(data: Bytes) -> Floats:
        values: Floats = quants.dequantize(np.ascontiguousarray(data), kind)
        return values.astype(np.float32, copy=False)

    def encode(values: Floats) -> Bytes:
        encoded = np.ascontiguousarray(quants.quantize(values, kind))
        return encoded.view(np.uint8).reshape(*values.shape[:-1], -1)

    encoder = encode if _has_encoder(kind, block) else None
    return WeightFormat(name, block, block_bytes, dequantise, packed, exact, product_error, encoder)


def _has_encoder(kind: GGMLQuantizationType, block: int) -> bool:
    try:
        quants.quantize(np.zeros((1, block), np.float32), kind)
    except NotImplementedError:
        return False
    return True


def _integers(name: str, packed: PackedKind) -> WeightFormat:
    row = INTEGERS[name]
    return WeightFormat(name, GROUP, row.nbytes, row.dequantise, packed, True, INT8_ERROR, row.encode)


FORMATS: Mapping[str, WeightFormat] = MappingProxyType(
    {
        row.name: row
        for row in (
            _row("F32", "f32", True, FLOAT_ERROR),
            _row("F16", "f16", True, FLOAT_ERROR),
            _row("BF16", "bf16", True, BFLOAT_ERROR),
            _row("Q4_0", "q4", True, INT8_ERROR),
            _row("Q4_1", "q4m", True, INT8_ERROR),
            _row("Q5_0", "q5", True, INT8_ERROR),
            _row("Q5_1", "q5m", True, INT8_ERROR),
            _row("Q8_0", "q8", True, INT8_ERROR),
            _row("Q2_K", "q2k", True, INT8_ERROR),
            _row("Q3_K", "q3k", True, INT8_ERROR),
            _row("Q4_K", "q4k", True, INT8_ERROR),
            _row("Q5_K", "q5k", True, INT8_ERROR),
            _row("Q6_K", "q6k", True, INT8_ERROR),
            _row("IQ4_XS", "iq4k", True, INT8_ERROR),
            _row("IQ4_NL", "iq4", True, INT8_ERROR),
            _row("MXFP4", "mx4", True, INT8_ERROR),
            _row("NVFP4", "nv4", True, INT8_ERROR),
            _row("TQ1_0", "q2", True, INT8_ERROR),
            _row("TQ2_0", "q2", True, INT8_ERROR),
            *(_row(name, "q8", False, REENCODED_ERROR) for name in _REENCODED),
            # From safetensors, with their own scales and zero points. The products of 8-bit floats are float32.
            WeightFormat("FP8", SPAN, EIGHTS_BYTES, dequantise_eights, "f8", True, FLOAT_ERROR, encode_eights),
            _integers("INT4", "q4"),
            _integers("INT4_BF16", "q4b"),
            _integers("INT4_ZP", "q4z"),
            _integers("INT4_ZP_BF16", "q4zb"),
            _integers("INT8", "q8"),
            _integers("INT8_BF16", "q8b"),
        )
    }
)


def format_of(tensor: Tensor) -> WeightFormat:
    """The tensor's row of the table; UnsupportedModelError if there is none."""
    row = FORMATS.get(tensor.format)
    if row is None:
        raise UnsupportedModelError(
            f"{tensor.file}: tensor {tensor.name!r} has the format {tensor.format}, which is not supported; "
            f"use a file in {', '.join(FORMATS)}"
        )
    return row


def dequantise(tensor: Tensor) -> Floats:
    """The whole tensor as float32 in its logical shape."""
    if not isinstance(tensor, JoinedTensor):
        return format_of(tensor).dequantise(tensor.data).reshape(tensor.shape)
    if len(tensor.shape) > 2:
        return np.stack([dequantise(tensor.expert(expert)) for expert in range(tensor.shape[0])])
    rows, columns = tensor.shape
    return format_of(tensor).dequantise(tensor.rows(0, rows))[:, :columns]
