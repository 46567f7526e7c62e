"""Attention of some sequences as `Cache.attend` has it, but by an op on tensors."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from isotherm.gpu_kernels.kernels import Heads, KvCache
from isotherm.gpu_kernels.kernels import Sequences as Places

from .device_kv import cache_of, heads_of, sequences_of
from .kv import Cache
from .torch_values import count_of

Attend = Callable[[torch.Tensor, KvCache, Heads, Places, torch.Tensor, torch.Tensor], None]
SPARE = 3  # rows of the buffers beyond the step's tokens


def attended(attend: Attend, cache: Cache, sequences: Sequence[Any], window: int = 0) -> list[np.ndarray]:
    """sequences: (q [tokens, heads, head_dim], block table, first position) of each; the outputs of each. What lies
    beyond the step's tokens is left alone."""
    tokens, heads = sum(len(q) for q, _, _ in sequences), sequences[0][0].shape[1]
    q = torch.from_numpy(np.concatenate([q for q, _, _ in sequences])).flatten(1)
    q = torch.nn.functional.pad(q, (0, 0, 0, SPARE), value=np.nan)
    places = sequences_of([(np.arange(first, first + len(q)), table) for q, table, first in sequences])
    spare = torch.zeros(SPARE, dtype=torch.int64)
    places = Places(*(torch.cat([x, spare]) for x in (places.positions, places.slots, places.sequence)), places.tables)
    out = torch.full_like(q, 7.0)
    memory = cache_of(cache.kind, cache.head_dim, cache.cache)
    attend(q, memory, heads_of(heads, cache.kv_heads, cache.head_dim, window=window), places, out, count_of(tokens))
    assert (out[tokens:] == 7).all()
    rows = out[:tokens].unflatten(1, (heads, -1)).numpy()
    return np.split(rows, np.cumsum([len(q) for q, _, _ in sequences])[:-1])
