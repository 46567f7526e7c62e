"""Norm, rope and the store into the paged cache against their definitions."""

import numpy as np
import pytest
from isotherm.cpu_kernels import kv_reference
from isotherm.cpu_kernels.jit import kernel
from isotherm.cpu_kernels.kv_layout import KV_KINDS, key_bytes
from isotherm.cpu_kernels.layout import KV_BLOCK
from isotherm.cpu_kernels.rope import NO_NORM, NORM_ALL_HEADS, NORM_EACH_HEAD
from isotherm.cpu_kernels.simd import f32x16, micro_kernel
from support.rope import BLOCKS, Case


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
