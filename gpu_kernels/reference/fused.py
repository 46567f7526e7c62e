"""Arithmetic of the CPU's vectors in torch: fused multiply-adds by float64, and elementary functions made of them."""

import torch
from torch import Tensor

_BELOW = (1 << 29) - 1  # bits of a float64 that a float32 has not
_HALF = 1 << 28

LANES = 16


def add(product: Tensor, total: Tensor) -> Tensor:
    """product (float64, exact) + total (float32), rounded once to float32. What is subnormal may be rounded twice."""
    wide = product + total
    halves = (wide.view(torch.int64) & _BELOW) == _HALF
    if halves.any():  # in the middle of two float32; if it was rounded to that, it has to go back to its own side
        terms = (term.expand_as(wide)[halves] for term in (product, total))
        wide[halves] = _beside(wide[halves], *terms)
    return wide.float()


def _beside(wide: Tensor, product: Tensor, total: Tensor) -> Tensor:
    """Of sums in float64, the next ones in the direction of what is missing to the exact ones."""
    back = wide - product
    error = (product - (wide - back)) + (total - back)
    return torch.where(error == 0, wide, torch.nextafter(wide, error * torch.inf))


def fma(a: Tensor | float, b: Tensor, c: Tensor) -> Tensor:
    """a * b + c of float32, rounded once."""
    return add(b.double() * (a if isinstance(a, float) else a.double()), c)


def add_up(products: Tensor, total: Tensor) -> Tensor:
    """Float64 products [n, ...], each exact, one after the other onto the total [...], rounded to float32 each time."""
    for product in products:
        total = add(product, total)
    return total


def divide(a: Tensor | int, b: Tensor | int) -> Tensor:
    """a / b in float32, where torch would multiply by the inverse of a number."""
    if isinstance(a, Tensor):
        return a / (b if isinstance(b, Tensor) else torch.full_like(a, b))
    assert isinstance(b, Tensor)
    return torch.full_like(b, a) / b


def square_root(x: Tensor) -> Tensor:
    """The nearest float32; torch's own is not always that."""
    return x.double().sqrt().float()


def add_lanes(lanes: Tensor) -> Tensor:
    """The sum of the last axis, of a power of two numbers, by halves."""
    while lanes.shape[-1] > 1:
        low, high = lanes.chunk(2, dim=-1)
        lanes = low + high
    return lanes[..., 0]


def exp(x: Tensor) -> Tensor:
    """e^x as `cpu_kernels.simd` has it: 0 below -87."""
    x, low = x.clamp(-87.0, 88.0), x < -87.0
    n = (x * 1.4426950408889634).round()
    r = fma(-0.693359375, n, x)
    r = fma(_float(2.12194440e-4), n, r)
    y = torch.full_like(r, 1 / 720)
    for coefficient in (1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0):
        y = fma(y, r, torch.full_like(r, coefficient))
    power = (n.nan_to_num().int() + 127 << 23).view(torch.float32)
    return torch.where(low, torch.zeros_like(y), y * power)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + e^-x)."""
    return divide(1, 1 + exp(-x))


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """SiLU(gate) * up."""
    return gate / (1 + exp(-gate)) * up


def _float(value: float) -> float:
    """The nearest float32."""
    return torch.tensor(value, dtype=torch.float32).item()
