"""Tokens whose queries and keys are rotated and stored, and the CPU's op run over them."""

import numpy as np
from isotherm.cpu_kernels import kv_reference, reference
from isotherm.cpu_kernels.descriptor import N_LOGITS, N_TOKENS
from isotherm.cpu_kernels.kv_layout import KV_KINDS, key_bytes, padded_head, part_bytes
from isotherm.cpu_kernels.layout import KV_BLOCK
from isotherm.cpu_kernels.rope import FIELDS, NO_NORM, NORM_ALL_HEADS, NORM_EACH_HEAD, rope_store

from .ops import run_op

CONTEXT, BLOCKS, EPS = 50, 6, 1e-5


class Case:
    """Random q, k, v of some tokens, with what turns them."""

    def __init__(self, tokens, heads=4, kv_heads=2, head_dim=16, rotary_dim=None):
        rng = np.random.default_rng(head_dim)
        self.shape = heads, kv_heads, head_dim
        self.q = rng.standard_normal((tokens, heads, head_dim), np.float32)
        self.k, self.v = (rng.standard_normal((tokens, kv_heads, head_dim), np.float32) for _ in range(2))
        self.rotary_dim = head_dim if rotary_dim is None else rotary_dim
        self.cosines, self.sines = rng.standard_normal((2, CONTEXT, self.rotary_dim // 2), np.float32)
        self.q_norm, self.k_norm = rng.standard_normal((2, heads * head_dim), np.float32)
        self.positions = rng.integers(0, CONTEXT, tokens)
        self.slots = rng.permutation(BLOCKS * KV_BLOCK)[:tokens]

    def rows(self, chosen):
        part = Case.__new__(Case)
        part.__dict__ |= self.__dict__
        for name in ("q", "k", "v", "positions", "slots"):
            setattr(part, name, getattr(self, name)[chosen].copy())
        return part

    def run(self, mode=NO_NORM, scale=1.0, kind="f32", threads=1, clip=0.0, wanted=None):
        """(q, cache) of the kernel. wanted: int64, the tokens whose q matters; all if it is not given."""
        q, k, v = self.q.copy(), self.k.copy(), self.v.copy()
        _, kv_heads, head_dim = self.shape
        cache = np.zeros((BLOCKS, kv_heads, part_bytes(kind, head_dim)), np.uint8)
        fields = {"q": q, "q_stride": q.strides[0], "k": k, "k_stride": k.strides[0], "v": v, "v_stride": v.strides[0]}
        fields |= {"q_norm": self.q_norm, "k_norm": self.k_norm, "norm_mode": mode, "eps": EPS}
        fields |= {"q_scale": scale, "clip": clip}
        fields |= dict(zip(("heads", "kv_heads", "head_dim"), self.shape, strict=True))
        fields |= {"rotary_dim": self.rotary_dim, "cosines": self.cosines, "sines": self.sines}
        fields |= {"positions": self.positions, "slots": self.slots, "k_cache": cache}
        fields |= {"v_cache": cache.ctypes.data + key_bytes(kind, head_dim), "kv_kind": KV_KINDS[kind].number}
        fields |= {"block_bytes": cache.strides[0], "head_bytes": cache.strides[1]}
        fields |= {"count_slot": N_TOKENS if wanted is None else N_LOGITS, "rows": 0 if wanted is None else wanted}
        step = {N_TOKENS: len(q), N_LOGITS: 0 if wanted is None else len(wanted)}
        run_op(rope_store, FIELDS, fields, step=step, threads=threads)
        return q, cache

    def run_floats(self, mode=NO_NORM, scale=1.0):
        """(q, k cache, v cache) of the kernel, the caches as numbers."""
        q, cache = self.run(mode, scale)
        _, kv_heads, head_dim = self.shape
        row, at = padded_head(head_dim), key_bytes("f32", head_dim)
        k = cache[:, :, :at].copy().view(np.float32).reshape(BLOCKS, kv_heads, row, KV_BLOCK)
        v = cache[:, :, at:].copy().view(np.float32).reshape(BLOCKS, kv_heads, KV_BLOCK, row)
        return q, k[:, :, :head_dim], v[..., :head_dim]

    def caches(self):
        _, kv_heads, head_dim = self.shape
        k_cache = np.zeros((BLOCKS, kv_heads, head_dim, KV_BLOCK), np.float32)
        return k_cache, np.zeros((BLOCKS, kv_heads, KV_BLOCK, head_dim), np.float32)

    def expected(self, mode=NO_NORM, scale=1.0):
        """(q, k cache, v cache) of the definition."""
        angles = self.cosines[self.positions], self.sines[self.positions]
        q = reference.rope(self._normed(self.q, self.q_norm, mode), *angles) * np.float32(scale)
        k = reference.rope(self._normed(self.k, self.k_norm, mode), *angles)
        k_cache, v_cache = self.caches()
        kv_reference.store_kv(k_cache, v_cache, k, self.v, self.slots)
        return q, k_cache, v_cache

    @staticmethod
    def _normed(x, weight, mode):
        tokens, heads, head_dim = x.shape
        if mode == NORM_EACH_HEAD:
            return reference.rms_norm(x, weight[:head_dim], EPS)
        if mode == NORM_ALL_HEADS:
            return reference.rms_norm(x.reshape(tokens, -1), weight[: heads * head_dim], EPS).reshape(x.shape)
        return x
