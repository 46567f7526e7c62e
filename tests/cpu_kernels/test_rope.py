"""Norm, rope and the store into the paged cache against their definitions."""

import numpy as np
import pytest
from isotherm.cpu_kernels import reference
from isotherm.cpu_kernels.descriptor import N_TOKENS
from isotherm.cpu_kernels.jit import kernel
from isotherm.cpu_kernels.layout import KV_BLOCK
from isotherm.cpu_kernels.rope import FIELDS, NO_NORM, NORM_ALL_HEADS, NORM_EACH_HEAD, rope_store
from isotherm.cpu_kernels.simd import f32x16, micro_kernel
from support.ops import run_op

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

    def caches(self, dtype):
        _, kv_heads, head_dim = self.shape
        k_cache = np.zeros((BLOCKS, kv_heads, head_dim, KV_BLOCK), dtype)
        return k_cache, np.zeros((BLOCKS, kv_heads, KV_BLOCK, head_dim), dtype)

    def run(self, mode=NO_NORM, scale=1.0, dtype=np.float32, threads=1):
        """(q, k cache, v cache) of the kernel."""
        q, k, v = self.q.copy(), self.k.copy(), self.v.copy()
        k_cache, v_cache = self.caches(dtype)
        fields = {"q": q, "q_stride": q.strides[0], "k": k, "k_stride": k.strides[0], "v": v, "v_stride": v.strides[0]}
        fields |= {"q_norm": self.q_norm, "k_norm": self.k_norm, "norm_mode": mode, "eps": EPS, "q_scale": scale}
        fields |= dict(zip(("heads", "kv_heads", "head_dim"), self.shape, strict=True))
        fields |= {"rotary_dim": self.rotary_dim, "cosines": self.cosines, "sines": self.sines}
        fields |= {"positions": self.positions, "slots": self.slots, "k_cache": k_cache, "v_cache": v_cache}
        fields |= {"kv_half": int(dtype == np.float16), "block_bytes": k_cache.strides[0]}
        run_op(rope_store, FIELDS, fields, step={N_TOKENS: len(q)}, threads=threads)
        return q, k_cache, v_cache

    def expected(self, mode=NO_NORM, scale=1.0):
        """(q, k cache, v cache) of the definition, in float32."""
        angles = self.cosines[self.positions], self.sines[self.positions]
        q = reference.rope(self._normed(self.q, self.q_norm, mode), *angles) * np.float32(scale)
        k = reference.rope(self._normed(self.k, self.k_norm, mode), *angles)
        k_cache, v_cache = self.caches(np.float32)
        reference.store_kv(k_cache, v_cache, k, self.v, self.slots)
        return q, k_cache, v_cache

    @staticmethod
    def _normed(x, weight, mode):
        tokens, heads, head_dim = x.shape
        if mode == NORM_EACH_HEAD:
            return reference.rms_norm(x, weight[:head_dim], EPS)
        if mode == NORM_ALL_HEADS:
            return reference.rms_norm(x.reshape(tokens, -1), weight[: heads * head_dim], EPS).reshape(x.shape)
        return x


@pytest.mark.parametrize("mode", [NO_NORM, NORM_EACH_HEAD, NORM_ALL_HEADS])
@pytest.mark.parametrize("head_dim", [8, 16, 24, 40, 64, 80, 96, 112, 128])
def test_rope_store_is_its_definition(head_dim, mode):
    case = Case(5, head_dim=head_dim)
    for got, expected in zip(case.run(mode, 0.25), case.expected(mode, 0.25), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("rotary_dim", [2, 8, 12, 32, 34])
def test_what_lies_beyond_the_rotary_part_is_left_as_it_is(rotary_dim):
    case = Case(3, head_dim=64, rotary_dim=rotary_dim)
    got = case.run()
    for one, expected in zip(got, case.expected(), strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-5, atol=2e-6)
    np.testing.assert_array_equal(got[0][..., rotary_dim:], case.q[..., rotary_dim:])


@pytest.mark.parametrize("head_dim", [8, 24, 64])
def test_a_half_cache_holds_the_rounded_values(head_dim):
    case = Case(33, head_dim=head_dim)
    halves, floats = case.run(dtype=np.float16), case.run()
    np.testing.assert_array_equal(halves[0], floats[0])
    for half, whole in zip(halves[1:], floats[1:], strict=True):
        np.testing.assert_array_equal(half, whole.astype(np.float16))


def test_a_token_gets_the_same_bits_alone_and_by_two_threads():
    case = Case(17)
    q, k_cache, v_cache = case.run(NORM_EACH_HEAD, 0.3, threads=2)
    for token in range(17):
        q_alone, k_alone, v_alone = case.rows([token]).run(NORM_EACH_HEAD, 0.3)
        np.testing.assert_array_equal(q_alone[0], q[token])
        block, offset = divmod(int(case.slots[token]), KV_BLOCK)
        np.testing.assert_array_equal(k_alone[block, :, :, offset], k_cache[block, :, :, offset])
        np.testing.assert_array_equal(v_alone[block, :, offset], v_cache[block, :, offset])


@micro_kernel()
def _halve_16(e, source, target):
    e.store_half(e.load(f32x16, e.pointer(source)), e.pointer(target))


@micro_kernel()
def _widen_16(e, source, target):
    e.store(e.load_half(e.pointer(source)), e.pointer(target))


@kernel
def _halve(source, target, count):
    for i in range(0, count, 16):
        _halve_16(source + 4 * i, target + 2 * i)


@kernel
def _widen(source, target, count):
    for i in range(0, count, 16):
        _widen_16(source + 2 * i, target + 4 * i)


def same_floats(got, expected):
    """Equal bits, or both NaN."""
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(got[~nan], expected[~nan])
    np.testing.assert_array_equal(np.signbit(got[~nan]), np.signbit(expected[~nan]))


def test_every_float16_is_read_and_written_back():
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    floats, back = np.empty(1 << 16, np.float32), np.empty(1 << 16, np.float16)
    _widen(halves.ctypes.data, floats.ctypes.data, floats.size)
    _halve(floats.ctypes.data, back.ctypes.data, back.size)
    same_floats(floats, halves.astype(np.float32))
    same_floats(back, halves)


def test_floats_round_to_the_nearest_half_ties_to_even():
    # the midpoint above every float16, and its neighbours; then floats of all magnitudes
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middle = (halves[:-1] + halves[1:]) / 2
    parts = [middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(np.inf))]
    bits = np.arange(0, 1 << 32, 65521, dtype=np.uint32).view(np.float32)
    edges = np.array([65504, 65519.996, 65520, 65536, 1e38, np.inf, 1e-45], np.float32)
    floats = np.concatenate([*parts, bits, edges])
    floats = np.concatenate([floats, -floats, np.zeros(-2 * floats.size % 16, np.float32)])
    got = np.empty(floats.size, np.float16)
    _halve(floats.ctypes.data, got.ctypes.data, got.size)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        same_floats(got, floats.astype(np.float16))
