"""Rows in any weight format: quantised where an encoder is at hand, else random blocks. For tests only."""

import numpy as np
from gguf import GGMLQuantizationType, quants
from gguf.constants import GGML_QUANT_SIZES
from isotherm.experts.formats import FORMATS
from support.k_quants import quantise_k

# Where the float16 scale of a block lies, and the one of its minima with what centres the values.
_SCALE_AT = {"Q3_K": 108, "IQ4_NL": 0, "IQ4_XS": 0, "IQ1_S": 0, "IQ2_XXS": 0, "IQ2_XS": 0, "IQ2_S": 0}
_SCALE_AT |= {"IQ3_XXS": 0, "IQ3_S": 0, "Q2_K": 80}
_MINIMUM_AT = {"Q2_K": (82, 1.5)}
RANDOM = (*_SCALE_AT, "IQ1_M", "NVFP4")  # formats without an encoder
GGUF_FORMATS = tuple(name for name in FORMATS if name in GGMLQuantizationType.__members__)


def encode(values: np.ndarray, name: str) -> np.ndarray:
    """float32 (..., columns) to rows of the format: floats as they are, else uint8 (..., bytes per row)."""
    if name in ("Q4_K", "Q5_K", "Q6_K"):
        return quantise_k(values, name)
    if name in RANDOM:
        return _random_rows(values, name)
    if name in GGUF_FORMATS:
        return quants.quantize(values, GGMLQuantizationType[name])
    write = FORMATS[name].encode
    assert write is not None
    return write(values)


def _random_rows(values: np.ndarray, name: str) -> np.ndarray:
    """Random codes in blocks whose root mean squares are those of `values`."""
    kind = GGMLQuantizationType[name]
    block, size = GGML_QUANT_SIZES[kind]
    groups = values.reshape(-1, block)
    rng = np.random.default_rng([kind, groups.size])
    raw = rng.integers(0, 256, (len(groups), size), np.uint8)
    _set_scales(raw, name, np.ones(len(groups), np.float32))
    sizes = [np.sqrt(np.mean(np.square(rows), axis=-1)) for rows in (groups, quants.dequantize(raw, kind))]
    _set_scales(raw, name, np.divide(*sizes, out=np.ones(len(groups), np.float32), where=sizes[1] > 0))
    return raw.reshape(*values.shape[:-1], values.shape[-1] // block * size)


def _set_scales(raw: np.ndarray, name: str, scales: np.ndarray) -> None:
    if name == "NVFP4":
        raw[:, :4] = quants.NVFP4.fp32_to_ue4m3(scales)[:, None]
    elif name == "IQ1_M":  # its four nibbles head four words of scales
        words = raw[:, 48:].view(np.uint16)
        bits = scales.astype(np.float16).view(np.uint16)[:, None]
        words[:] = words & 0x0FFF | bits << np.array([12, 8, 4, 0], np.uint16) & 0xF000
    else:
        _set_half(raw, _SCALE_AT[name], scales)
        if name in _MINIMUM_AT:
            at, factor = _MINIMUM_AT[name]
            _set_half(raw, at, factor * scales)


def _set_half(raw: np.ndarray, at: int, values: np.ndarray) -> None:
    raw[:, at : at + 2] = values.astype(np.float16)[:, None].view(np.uint8)
