"""MXFP4 as gpt-oss has it: NAME_blocks and NAME_scales for the experts of a layer.

blocks uint8 [experts, rows, columns / 32, 16]: 32 4-bit floats, the even column of a pair in the low nibble.
scales uint8 [experts, rows, columns / 32]: powers of two, 127 for 1. Rows of gate and up take turns.
"""

from collections.abc import Callable

import numpy as np

from ..checkpoint import JoinedTensor, Plane, RawTensor, Tensor
from ..fields import Fields
from ..scaled_blocks import Bytes
from .parts import Parts, Tensors, values_of

_HALF, _WOVEN = 16, "gate_up_proj"


def find_mxfp4(config: Fields, tensors: Tensors) -> Callable[[str], Tensor | None]:
    """See `quantisation.finder`."""

    def find(name: str) -> Tensor | None:
        codes = tensors.get(f"{name}_blocks")
        if name in tensors or codes is None:
            return tensors.get(name)
        return _join(name, Parts(tensors, codes))

    return find


def _join(name: str, parts: Parts) -> Tensor:
    codes = parts.codes
    woven = 2 if name.endswith(_WOVEN) else 1
    if codes.format != "U8" or len(codes.shape) != 4 or codes.shape[-1] != _HALF or codes.shape[1] % woven:
        raise parts.broken(f"is {codes.format} {codes.shape}, not U8 (experts, rows, blocks, {_HALF})")
    experts, rows, blocks, _ = codes.shape
    scales = parts.take(f"{name}_scales", ("U8", "F8_E8M0"), (experts, rows, blocks))
    planes = (Plane(_flat(codes)), Plane(values_of(scales)))
    shape = (experts, rows, 2 * _HALF * blocks)
    return JoinedTensor(name, codes.file, shape, "MXFP4", planes, _blocks, rows, woven=woven)


def _flat(codes: RawTensor) -> Bytes:
    return codes.data.reshape(*codes.shape[:2], -1)


def _blocks(codes: Bytes, scales: Bytes) -> Bytes:
    """GGUF's blocks: a scale, then columns 0-15 in the low nibbles and 16-31 in the high ones."""
    rows, groups = scales.shape
    pairs = codes.reshape(rows, groups, 2, _HALF // 2)
    sides = np.stack((pairs & 15, pairs >> 4), -1).reshape(rows, groups, 2, _HALF)
    return np.concatenate((scales[..., None], sides[:, :, 0] | sides[:, :, 1] << 4), -1).reshape(rows, -1)
