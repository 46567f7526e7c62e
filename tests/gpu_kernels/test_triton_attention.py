"""Attention by Triton kernels, in the interpreter, against the CPU's kernels: bit for bit."""

import numpy as np
import pytest
import torch
from isotherm.cpu_kernels.kv_layout import KV_KINDS
from isotherm.cpu_kernels.layout import SEGMENT
from isotherm.gpu_kernels.triton_kernels import triton_kernels
from isotherm.gpu_kernels.triton_kernels.decode_attention import attend_by_segments, parts_shape
from isotherm.gpu_kernels.triton_kernels.prefill_attention import attend_by_tiles
from support.device_attention import attended
from support.kv import Cache, random_q, random_table


@pytest.fixture(autouse=True)
def card_arithmetic():
    with np.errstate(all="ignore"):  # as a card does
        yield


def by_segments(q, cache, heads, sequences, out, count):
    parts = torch.full(parts_shape(len(q), heads, sequences.tables.shape[1]), torch.nan)
    attend_by_segments(q, cache, heads, sequences, out, count, parts)


WAYS = pytest.mark.parametrize("way", [by_segments, attend_by_tiles], ids=["segments", "tiles"])
KINDS = pytest.mark.parametrize("kind", KV_KINDS)


def assert_same(way, cache, sequences, window=0):
    for got, expected in zip(attended(way, cache, sequences, window), cache.attend(sequences, window), strict=True):
        np.testing.assert_array_equal(got, expected)


@WAYS
@KINDS
@pytest.mark.parametrize("kv_heads, shared, head_dim", [(2, 3, 24), (1, 8, 80), (1, 20, 16)])
def test_attention_is_that_of_the_cpu(kv_heads, shared, head_dim, kind, way):
    cache, table = Cache(8, kv_heads, head_dim, kind), random_table(8, 7)
    assert_same(way, cache, [(random_q(2, kv_heads * shared, head_dim), table, 98)])


@pytest.mark.parametrize("kind", ["f32", "f16", "int16", "int8"])
@pytest.mark.parametrize("head_dim", [8, 128])
def test_rows_of_one_head_are_those_of_the_cpu(head_dim, kind):
    cache, table = Cache(8, 2, head_dim, kind), random_table(8, 7)
    for way in (by_segments, attend_by_tiles):
        assert_same(way, cache, [(random_q(3, 2, head_dim), table, 30)])


@WAYS
@pytest.mark.parametrize("kind", ["bf16", "int16", "int8"])
@pytest.mark.parametrize("context", [1, 15, 16, 17, 65, SEGMENT + 1])
def test_contexts_across_the_borders_of_blocks_strides_and_segments(context, kind, way):
    cache, table = Cache(70, 1, 16, kind), random_table(70, 66)
    assert_same(way, cache, [(random_q(1, 2, 16), table, context - 1)])


@WAYS
@pytest.mark.parametrize("kind", ["int16", "bf16"])
def test_three_segments_are_merged_in_their_order(kind, way):
    cache, table = Cache(140, 1, 16, kind), random_table(140, 140)
    assert_same(way, cache, [(random_q(2, 2, 16), table, 2 * SEGMENT - 1)])


@WAYS
@pytest.mark.parametrize("kind", ["f16", "int16"])
@pytest.mark.parametrize(
    "window, first", [(1, 20), (17, 0), (64, 140), (100, SEGMENT - 3), (SEGMENT + 3, SEGMENT + 60)]
)
def test_a_window_hides_what_is_older(window, first, kind, way):
    cache, table = Cache(70, 2, 24, kind), random_table(70, 70)
    assert_same(way, cache, [(random_q(5, 4, 24), table, first)], window)


@WAYS
@pytest.mark.parametrize("kind", ["bf16", "int16"])
def test_tokens_of_several_sequences_go_through_one_step(kind, way):
    cache = Cache(30, 2, 40, kind)
    cases = (1, 100), (9, 0), (1, 0), (18, 60), (2, 15)
    sequences = [(random_q(t, 4, 40), random_table(30, -(-(t + first) // 16), t), first) for t, first in cases]
    assert_same(way, cache, sequences)


@pytest.mark.parametrize("kind", ["f32", "int16"])
def test_a_token_gets_the_same_bits_in_any_tile(kind):
    cache, table = Cache(16, 2, 24, kind), random_table(16, 12)
    q = random_q(75, 4, 24)
    (whole,) = attended(attend_by_tiles, cache, [(q, table, 100)])
    for start, end in ((0, 1), (1, 40), (40, 75)):
        (part,) = attended(attend_by_tiles, cache, [(q[start:end], table, 100 + start)])
        np.testing.assert_array_equal(part, whole[start:end])


@WAYS
@KINDS
def test_garbage_beyond_the_last_position_does_not_matter(kind, way):
    cache, table = Cache(4, 1, 24, kind), random_table(4, 2)
    q = random_q(3, 2, 24)
    clean = attended(way, cache, [(q, table, 20)])[0]
    cache.exact_k[table[1], :, :, 7:], cache.exact_v[table[1], :, 7:] = np.nan, np.nan
    cache.pack()
    np.testing.assert_array_equal(attended(way, cache, [(q, table, 20)])[0], clean)


@WAYS
@pytest.mark.parametrize("kind", ["f32", "int16"])
@pytest.mark.parametrize("size", [0.0, 1e-20, 300.0, 1e6])
def test_scores_of_any_size_are_those_of_the_cpu(kind, size, way):
    cache, table = Cache(12, 1, 16, kind), random_table(12, 10)
    cache.exact_v[table[3]] *= 1e-3
    cache.exact_v[table[4:7]] = 0
    cache.pack()
    assert_same(way, cache, [(np.float32(size) * random_q(2, 2, 16), table, 140)])


@WAYS
@pytest.mark.parametrize("kind", ["bf16", "int16", "int8"])
@pytest.mark.parametrize("where", ["exact_k", "exact_v"])
def test_a_nan_in_the_context_shows_where_it_does_on_the_cpu(kind, where, way):
    cache, table = Cache(12, 1, 16, kind), random_table(12, 10)
    getattr(cache, where)[table[0], :, 5, 3] = np.nan
    cache.pack()
    assert_same(way, cache, [(random_q(1, 1, 16), table, 90)])


@pytest.mark.parametrize("tokens", [1, 17])
def test_the_op_chooses_a_way_by_the_tokens_of_the_largest_step(tokens):
    cache, table, kernels = Cache(8, 1, 16, "int16"), random_table(8, 7), triton_kernels()
    for _ in range(2):  # the second time with the scratch of the first
        assert_same(kernels.attend, cache, [(random_q(tokens, 2, 16), table, 80)])
