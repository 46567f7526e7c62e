"""Paged attention against its definition, and bit for bit against itself in other company."""

import numpy as np
import pytest
from isotherm.cpu_kernels import reference
from isotherm.cpu_kernels.attention import FIELDS, attention, scratch_bytes
from isotherm.cpu_kernels.descriptor import N_QUERY_BLOCKS
from isotherm.cpu_kernels.layout import KV_BLOCK, QUERY_BLOCK
from support.ops import run_op


class Cache:
    """A paged cache filled with random keys and values."""

    def __init__(self, blocks, kv_heads, head_dim, dtype=np.float32):
        rng = np.random.default_rng(blocks)
        self.kv_heads, self.head_dim = kv_heads, head_dim
        self.k = rng.standard_normal((blocks, kv_heads, head_dim, KV_BLOCK), np.float32).astype(dtype)
        self.v = rng.standard_normal((blocks, kv_heads, KV_BLOCK, head_dim), np.float32).astype(dtype)

    def attend(self, sequences, window=0, chunk=QUERY_BLOCK, threads=1):
        """The kernel's output for each sequence (q [tokens, heads, head_dim], block table, first position)."""
        heads = sequences[0][0].shape[1]
        q = np.concatenate([q for q, _, _ in sequences])
        positions = np.concatenate([np.arange(first, first + len(q)) for q, _, first in sequences])
        blocks, row = [], 0
        for part, table, _ in sequences:
            for start in range(0, len(part), chunk):
                blocks.append((row + start, min(chunk, len(part) - start), table.ctypes.data))
            row += len(part)
        first, count, tables = (np.array(column, np.int64) for column in zip(*blocks, strict=True))
        out = np.full(q.shape, np.nan, np.float32)
        stride = scratch_bytes(heads, self.kv_heads, self.head_dim)
        scratch = np.full(threads * stride, 0xFF, np.uint8)
        fields = {"q": q, "q_stride": q.strides[0], "out": out, "out_stride": out.strides[0], "heads": heads}
        fields |= {"kv_heads": self.kv_heads, "head_dim": self.head_dim, "window": window, "positions": positions}
        fields |= {"k_cache": self.k, "v_cache": self.v, "kv_half": int(self.k.dtype == np.float16)}
        fields |= {"block_bytes": self.k.strides[0], "scratch": scratch, "scratch_stride": stride}
        fields |= {"block_first": first, "block_count": count, "block_table": tables}
        run_op(attention, FIELDS, fields, step={N_QUERY_BLOCKS: len(first)}, threads=threads)
        return np.split(out, np.cumsum([len(q) for q, _, _ in sequences])[:-1])

    def expected(self, q, table, first, window=0):
        return reference.attention(q, self.k, self.v, table, np.arange(first, first + len(q)), window)


def random_q(tokens, heads, head_dim):
    q = np.random.default_rng(tokens).standard_normal((tokens, heads, head_dim), np.float32)
    return q * np.float32(head_dim**-0.5)


def random_table(blocks, length, seed=0):
    return np.random.default_rng(seed).permutation(blocks)[:length].astype(np.int64)


def assert_close(got, expected):
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shared", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("head_dim", [8, 16, 24, 40, 64, 80, 128])
def test_attention_is_its_definition(head_dim, shared, dtype):
    cache, table = Cache(12, 2, head_dim, dtype), random_table(12, 7)
    q = random_q(19, 2 * shared, head_dim)
    assert_close(cache.attend([(q, table, 80)])[0], cache.expected(q, table, 80))


@pytest.mark.parametrize("tokens", [1, 2, 15, 16, 17, 31, 33])
@pytest.mark.parametrize("first", [0, 1, 15, 16, 63, 64, 65, 130])
def test_contexts_across_the_borders_of_blocks_and_strides(first, tokens):
    cache, table = Cache(16, 1, 16), random_table(16, 11)
    q = random_q(tokens, 2, 16)
    assert_close(cache.attend([(q, table, first)])[0], cache.expected(q, table, first))


@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 64, 100, 1000])
def test_a_window_hides_what_is_older(window):
    cache, table = Cache(16, 2, 24), random_table(16, 14)
    q = random_q(70, 4, 24)
    for first in (0, 140):
        assert_close(cache.attend([(q, table, first)], window)[0], cache.expected(q, table, first, window))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shared, head_dim", [(1, 128), (4, 64), (6, 24), (8, 16)])
@pytest.mark.parametrize("window", [0, 21])
def test_a_token_gets_the_same_bits_however_its_prompt_is_cut(shared, head_dim, window, dtype):
    cache, table = Cache(16, 2, head_dim, dtype), random_table(16, 12)
    q = random_q(75, 2 * shared, head_dim)
    (whole,) = cache.attend([(q, table, 100)], window)
    for chunk in (1, 3, 5):
        np.testing.assert_array_equal(cache.attend([(q, table, 100)], window, chunk)[0], whole)
    for start in (1, 40, 74):
        part = q[start:].copy()
        np.testing.assert_array_equal(cache.attend([(part, table, 100 + start)], window)[0], whole[start:])


def test_sequences_in_a_batch_and_two_threads_change_no_bit():
    cache = Cache(40, 2, 40)
    sequences = [
        (random_q(tokens, 8, 40), random_table(40, 9, tokens), first)
        for tokens, first in ((1, 100), (17, 0), (1, 0), (33, 60), (9, 15))
    ]
    together = cache.attend(sequences, threads=2)
    for sequence, got in zip(sequences, together, strict=True):
        np.testing.assert_array_equal(cache.attend([sequence])[0], got)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_garbage_beyond_the_last_position_does_not_matter(dtype):
    cache, table = Cache(4, 1, 24, dtype), random_table(4, 2)
    q = random_q(3, 2, 24)
    clean = cache.attend([(q, table, 20)])[0]
    cache.k[table[1], :, :, 7:], cache.v[table[1], :, 7:] = np.nan, np.nan
    np.testing.assert_array_equal(cache.attend([(q, table, 20)])[0], clean)


def test_large_scores_do_not_overflow():
    cache, table = Cache(4, 1, 16), random_table(4, 3)
    q = 300 * random_q(8, 2, 16)
    assert_close(cache.attend([(q, table, 30)])[0], cache.expected(q, table, 30))


def test_a_nan_in_the_context_is_not_hidden():
    cache, table = Cache(4, 1, 16), random_table(4, 2)
    cache.k[table[0], :, 3, 5] = np.nan
    assert np.isnan(cache.attend([(random_q(1, 1, 16), table, 20)])[0]).all()
