"""Norm, rope and the store into the paged cache against their definitions."""

import numpy as np
import pytest
from isotherm.cpu_kernels import kv_reference, reference
from isotherm.cpu_kernels.descriptor import N_LOGITS, N_TOKENS
from isotherm.cpu_kernels.jit import kernel
from isotherm.cpu_kernels.kv_layout import KV_KINDS, key_bytes, padded_head, part_bytes
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

    def run(self, mode=NO_NORM, scale=1.0, kind="f32", threads=1, wanted=None):
        """(q, cache) of the kernel. wanted: int64, the tokens whose q matters; all if it is not given."""
        q, k, v = self.q.copy(), self.k.copy(), self.v.copy()
        _, kv_heads, head_dim = self.shape
        cache = np.zeros((BLOCKS, kv_heads, part_bytes(kind, head_dim)), np.uint8)
        fields = {"q": q, "q_stride": q.strides[0], "k": k, "k_stride": k.strides[0], "v": v, "v_stride": v.strides[0]}
        fields |= {"q_norm": self.q_norm, "k_norm": self.k_norm, "norm_mode": mode, "eps": EPS, "q_scale": scale}
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


@pytest.mark.parametrize("mode", [NO_NORM, NORM_EACH_HEAD, NORM_ALL_HEADS])
@pytest.mark.parametrize("head_dim", [8, 16, 24, 40, 64, 80, 96, 112, 128])
def test_rope_store_is_its_definition(head_dim, mode):
    case = Case(5, head_dim=head_dim)
    for got, expected in zip(case.run_floats(mode, 0.25), case.expected(mode, 0.25), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("wanted", [[], [4], [1, 3, 6]])
def test_of_tokens_that_do_not_matter_the_cache_is_written_and_q_is_left(wanted):
    case = Case(7)
    every, cache = case.run(NORM_EACH_HEAD, 0.25)
    q, same_cache = case.run(NORM_EACH_HEAD, 0.25, wanted=np.array(wanted, np.int64))
    np.testing.assert_array_equal(same_cache, cache)
    np.testing.assert_array_equal(q[wanted], every[wanted])
    others = np.setdiff1d(np.arange(7), wanted)
    np.testing.assert_array_equal(q[others], case.q[others])


@pytest.mark.parametrize("rotary_dim", [2, 8, 12, 32, 34])
def test_what_lies_beyond_the_rotary_part_is_left_as_it_is(rotary_dim):
    case = Case(3, head_dim=64, rotary_dim=rotary_dim)
    got = case.run_floats()
    for one, expected in zip(got, case.expected(), strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-5, atol=2e-6)
    np.testing.assert_array_equal(got[0][..., rotary_dim:], case.q[..., rotary_dim:])


@pytest.mark.parametrize("kind", KV_KINDS)
@pytest.mark.parametrize("head_dim", [8, 16, 24, 40, 64, 80, 128, 256])
def test_the_cache_holds_exactly_what_its_definition_says(head_dim, kind):
    case = Case(BLOCKS * KV_BLOCK, head_dim=head_dim)
    case.k[3], case.v[4] = 0, 0
    case.k[5, :, 1] = 1e4
    _, cache = case.run(kind=kind)
    expected, _, _ = kv_reference.pack_kv(kind, *case.run_floats()[1:])
    np.testing.assert_array_equal(cache, expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["int16", "int8"])
def test_what_is_not_finite_gives_a_scale_that_is_no_number(kind, bad):
    case = Case(3, head_dim=64)
    case.slots[:] = 0, 1, 2
    case.k[1, 0, 40], case.v[2, 1, 7] = bad, bad
    _, cache = case.run(kind=kind)
    size, at = KV_KINDS[kind].size, key_bytes(kind, 64)

    def scales(head, start, count):
        bits = cache[0, head, start : start + 32 * count].copy().view(np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(count, KV_BLOCK)

    # of key 1 in the first head both groups, as rotation mixes element 40 with 8; of value 2 in the second head
    assert np.argwhere(np.isnan(scales(0, 64 * KV_BLOCK * size, 2))).tolist() == [[0, 1], [1, 1]]
    assert np.argwhere(np.isnan(scales(1, at + 64 * KV_BLOCK * size, 1))).tolist() == [[0, 2]]


@pytest.mark.parametrize("kind", KV_KINDS)
def test_a_token_gets_the_same_bits_alone_and_by_two_threads(kind):
    case = Case(17)
    q, cache = case.run(NORM_EACH_HEAD, 0.3, kind, threads=2)
    alone = np.zeros_like(cache)
    for token in range(17):
        q_alone, cache_alone = case.rows([token]).run(NORM_EACH_HEAD, 0.3, kind)
        np.testing.assert_array_equal(q_alone[0], q[token])
        alone |= cache_alone  # no two of them write the same bytes
    np.testing.assert_array_equal(alone, cache)


@micro_kernel()
def _halve_16(e, source, target):
    e.store(e.half_bits(e.load(f32x16, e.pointer(source))), e.pointer(target))


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
