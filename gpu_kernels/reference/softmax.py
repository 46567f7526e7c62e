"""The powers of 2 of the CPU's softmax, bit for bit."""

import torch
from torch import Tensor

from .fused import add

_MAGIC = 1.5 * 2.0**23  # a sum with it is rounded to an integer, which its low bits hold
_COLDEST = -125.0
_COEFFICIENTS = (0.0013264738, 0.009671513, 0.055507337, 0.24022242, 0.69314698, 1.0)  # of 2^x on -0.5 .. 0.5


def exp2(x: Tensor) -> Tensor:
    """2^x of float32, x up to about 0; some 2^-125 below -125, and NaN of NaN."""
    x = torch.where(x < _COLDEST, _COLDEST, x)
    shifted = x + _MAGIC
    part = (x - (shifted - _MAGIC)).double()
    y, *others = torch.tensor(_COEFFICIENTS, device=x.device)
    for coefficient in others:
        y = add(y * part, coefficient)
    power = y.view(torch.int32) + (shifted.view(torch.int32) << 23)
    return torch.where(torch.isfinite(x), power.view(torch.float32), torch.nan)
