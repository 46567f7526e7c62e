"""Attention in torch against the CPU's kernels, bit for bit."""

import numpy as np
import pytest
from isotherm.cpu_kernels.kv_layout import KV_KINDS
from isotherm.cpu_kernels.layout import KV_BLOCK, SEGMENT
from isotherm.gpu_kernels.reference.attention import attend
from support.device_attention import attended
from support.kv import Cache, random_q, random_table

LONG = 3 * SEGMENT // KV_BLOCK + 1  # blocks of three segments and a little more


def run(cache, sequences, window=0):
    return attended(attend, cache, sequences, window)


def assert_same(cache, sequences, window=0):
    for got, expected in zip(run(cache, sequences, window), cache.attend(sequences, window), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("kind", KV_KINDS)
@pytest.mark.parametrize("shared, head_dim", [(1, 8), (4, 16), (3, 24), (2, 40), (8, 64), (5, 80), (2, 128), (1, 256)])
def test_attention_is_that_of_the_cpu(head_dim, shared, kind):
    cache, table = Cache(12, 2, head_dim, kind), random_table(12, 7)
    assert_same(cache, [(random_q(9, 2 * shared, head_dim), table, 80)])


@pytest.mark.parametrize("kind", ["f32", "int16"])
@pytest.mark.parametrize("tokens", [1, 16, 33])
@pytest.mark.parametrize("first", [0, 1, 15, 16, 63, 64, 65, 130])
def test_contexts_across_the_borders_of_blocks_and_strides(first, tokens, kind):
    cache, table = Cache(16, 1, 16, kind), random_table(16, 11)
    assert_same(cache, [(random_q(tokens, 2, 16), table, first)])


@pytest.mark.parametrize("kind", KV_KINDS)
@pytest.mark.parametrize("tokens, first", [(1, SEGMENT - 1), (1, SEGMENT), (5, SEGMENT - 2), (9, 3 * SEGMENT - 4)])
def test_contexts_across_the_borders_of_segments(first, tokens, kind):
    cache, table = Cache(LONG, 2, 16, kind), random_table(LONG, LONG)
    assert_same(cache, [(random_q(tokens, 6, 16), table, first)])


@pytest.mark.parametrize("kind", ["f16", "int16", "int8"])
@pytest.mark.parametrize("window", [1, 2, 17, 64, 100, 1000, SEGMENT + 3])
def test_a_window_hides_what_is_older(window, kind):
    cache, table = Cache(LONG, 2, 24, kind), random_table(LONG, LONG)
    q = random_q(35, 4, 24)
    for first in (0, 140, SEGMENT - 10, 2 * SEGMENT + 90):
        assert_same(cache, [(q, table, first)], window)


@pytest.mark.parametrize("kind", KV_KINDS)
@pytest.mark.parametrize("window", [0, 21])
def test_several_sequences_are_those_of_the_cpu(kind, window):
    cache = Cache(100, 2, 40, kind)
    cases = (1, 100), (17, 0), (1, 0), (33, 60), (9, 15), (1, SEGMENT + 5), (17, 100)
    sequences = [(random_q(t, 8, 40), random_table(100, -(-(t + first) // 16), t), first) for t, first in cases]
    assert_same(cache, sequences, window)


@pytest.mark.parametrize("kind", KV_KINDS)
def test_a_token_gets_the_same_bits_however_its_prompt_is_cut(kind):
    cache, table = Cache(16, 2, 24, kind), random_table(16, 12)
    q = random_q(75, 6, 24)
    (whole,) = run(cache, [(q, table, 100)])
    for start, end in ((0, 1), (1, 40), (40, 75)):
        np.testing.assert_array_equal(run(cache, [(q[start:end], table, 100 + start)])[0], whole[start:end])


@pytest.mark.parametrize("kind", KV_KINDS)
def test_garbage_beyond_the_last_position_does_not_matter(kind):
    cache, table = Cache(4, 1, 24, kind), random_table(4, 2)
    q = random_q(3, 2, 24)
    clean = run(cache, [(q, table, 20)])[0]
    cache.exact_k[table[1], :, :, 7:], cache.exact_v[table[1], :, 7:] = np.nan, np.nan
    cache.pack()
    np.testing.assert_array_equal(run(cache, [(q, table, 20)])[0], clean)


@pytest.mark.parametrize("size", [0.0, 1e-20, 300.0, 1e6])
@pytest.mark.parametrize("kind", KV_KINDS)
def test_scores_of_any_size_are_those_of_the_cpu(kind, size):
    cache, table = Cache(12, 1, 16, kind), random_table(12, 10)
    cache.exact_v[table[3]] *= 1e-3
    cache.exact_v[table[4:7]] = 0
    cache.pack()
    assert_same(cache, [(np.float32(size) * random_q(8, 2, 16), table, 140)])


@pytest.mark.parametrize("where", ["exact_k", "exact_v"])
@pytest.mark.parametrize("kind", KV_KINDS)
def test_a_nan_in_the_context_shows_where_it_does_on_the_cpu(kind, where):
    cache, table = Cache(12, 1, 16, kind), random_table(12, 10)
    getattr(cache, where)[table[0], :, 5, 3] = np.nan
    cache.pack()
    for first in (20, 90):
        assert_same(cache, [(random_q(1, 1, 16), table, first)])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("kind", KV_KINDS)
def test_a_query_that_is_not_finite_shows_where_it_does_on_the_cpu(kind, bad):
    cache, table = Cache(12, 1, 16, kind), random_table(12, 10)
    q = random_q(3, 2, 16)
    q[1, 0, 4] = bad
    got = run(cache, [(q, table, 70)])[0]
    np.testing.assert_array_equal(got, cache.attend([(q, table, 70)])[0])
    assert np.isnan(got[1, 0]).any()
    assert np.isfinite(got[0]).all()
