"""Rules of drawing tokens, and tokens that a set of kernels for accelerators draws by them."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from isotherm.gpu_kernels.kernels import Kernels

Rule = Mapping[str, float]

RULES: list[Rule] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.6},
    {"temperature": 100.0},
    {"temperature": 1e-45},
    {"top_k": 1},
    {"top_k": 40},
    {"top_k": 10**6},
    {"top_p": 1e-6},
    {"top_p": 0.3, "temperature": 0.5},
    {"top_p": 0.95},
    {"top_p": 0.9999, "temperature": 3.0},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"top_k": 500, "top_p": 0.97, "temperature": 5.0},
    {"top_k": 50, "top_p": 0.9, "min_p": 0.05, "temperature": 0.8},
]


def drawn(kernels: Kernels, logits: np.ndarray, rules: Sequence[Rule], uniform: np.ndarray) -> list[int]:
    """A token for each row of logits, by the row's rule and number."""
    defaults = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    types = torch.float32, torch.int64, torch.float64, torch.float32
    temperature, top_k, top_p, min_p = (
        torch.tensor([rule.get(name, value) for rule in rules], dtype=kind)
        for (name, value), kind in zip(defaults.items(), types, strict=True)
    )
    out = torch.full((len(logits),), -7)
    kernels.sample(torch.from_numpy(logits), temperature, top_k, top_p, min_p, torch.from_numpy(uniform), out)
    tokens: list[int] = out.tolist()
    return tokens
