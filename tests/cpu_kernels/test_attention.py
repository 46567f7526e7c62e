"""Paged attention against its definition, and bit for bit against itself in other company."""

import numpy as np
import pytest
from isotherm.cpu_kernels.kv_layout import KV_KINDS
from isotherm.cpu_kernels.layout import KV_BLOCK, QUERY_BLOCK, SEGMENT
from isotherm.cpu_kernels.reference import record_content
from support.kv import Cache, random_q, random_table

LONG = 3 * SEGMENT // KV_BLOCK + 1  # blocks of three segments and a little more
FLOATS = [kind for kind, numbers in KV_KINDS.items() if not numbers.limit]
CODES = [kind for kind, numbers in KV_KINDS.items() if numbers.limit]


def assert_close(got, expected, kind="f32"):
    """Against the definition over the numbers that the cache holds."""
    if kind in FLOATS:  # only the order of sums differs
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)
        return
    # Elements of a query are rounded to 1/8191 of its largest, weights times scales to 1/16383 of the largest of 64.
    # Both are noise of about 2^-14 to 2^-13, and a single output may be far out.
    assert np.linalg.norm(got - expected) < 2e-4 * np.linalg.norm(expected)
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-3)


@pytest.mark.parametrize("kind", KV_KINDS)
@pytest.mark.parametrize("shared", [1, 2, 3, 4, 5, 8, 16])
@pytest.mark.parametrize("head_dim", [8, 16, 24, 40, 64, 80, 128, 256])
def test_attention_is_its_definition(head_dim, shared, kind):
    cache, table = Cache(12, 2, head_dim, kind), random_table(12, 7)
    q = random_q(19, 2 * shared, head_dim)
    assert_close(cache.attend([(q, table, 80)])[0], cache.expected(q, table, 80), kind)


@pytest.mark.parametrize("kind", ["f32", "int16"])
@pytest.mark.parametrize("tokens", [1, 2, 15, 16, 17, 31, 33])
@pytest.mark.parametrize("first", [0, 1, 15, 16, 63, 64, 65, 130])
def test_contexts_across_the_borders_of_blocks_and_strides(first, tokens, kind):
    cache, table = Cache(16, 1, 16, kind), random_table(16, 11)
    q = random_q(tokens, 2, 16)
    assert_close(cache.attend([(q, table, first)])[0], cache.expected(q, table, first), kind)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("kind", ["f32", "int16"])
@pytest.mark.parametrize("tokens, first", [(1, SEGMENT - 1), (1, SEGMENT), (5, SEGMENT - 2), (9, 3 * SEGMENT - 4)])
def test_contexts_across_the_borders_of_segments(first, tokens, kind, split):
    cache, table = Cache(LONG, 2, 16, kind), random_table(LONG, LONG)
    q = random_q(tokens, 6, 16)
    got = cache.attend([(q, table, first)], split=split)[0]
    assert_close(got, cache.expected(q, table, first), kind)


@pytest.mark.parametrize("kind", ["f32", "int8"])
@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 64, 100, 1000])
def test_a_window_hides_what_is_older(window, kind):
    cache, table = Cache(LONG, 2, 24, kind), random_table(LONG, LONG)
    q = random_q(70, 4, 24)
    for first in (0, 140, SEGMENT - 10):
        assert_close(cache.attend([(q, table, first)], window)[0], cache.expected(q, table, first, window), kind)


@pytest.mark.parametrize("kind", KV_KINDS)
@pytest.mark.parametrize("shared, head_dim", [(1, 128), (4, 64), (6, 24), (8, 16)])
@pytest.mark.parametrize("window", [0, 21])
def test_a_token_gets_the_same_bits_however_its_prompt_is_cut(shared, head_dim, window, kind):
    cache, table = Cache(16, 2, head_dim, kind), random_table(16, 12)
    q = random_q(75, 2 * shared, head_dim)
    (whole,) = cache.attend([(q, table, 100)], window)
    for chunk in (1, 3, 5):
        np.testing.assert_array_equal(cache.attend([(q, table, 100)], window, chunk)[0], whole)
    for start in (1, 40, 74):
        part = q[start:].copy()
        np.testing.assert_array_equal(cache.attend([(part, table, 100 + start)], window)[0], whole[start:])


@pytest.mark.parametrize("kind", KV_KINDS)
@pytest.mark.parametrize("window", [0, 100, SEGMENT + 3])
def test_segments_that_are_shared_out_change_no_bit(window, kind):
    cache, table = Cache(LONG, 2, 40, kind), random_table(LONG, LONG)
    for tokens, first in ((1, 3 * SEGMENT + 7), (2 * QUERY_BLOCK + 3, 2 * SEGMENT - 5)):
        q = random_q(tokens, 6, 40)
        (whole,) = cache.attend([(q, table, first)], window)
        for threads in (1, 2):
            got = cache.attend([(q, table, first)], window, split=True, threads=threads)[0]
            np.testing.assert_array_equal(got, whole)
        np.testing.assert_array_equal(cache.attend([(q, table, first)], window, chunk=1, split=True)[0], whole)


@pytest.mark.parametrize("kind", KV_KINDS)
def test_sequences_in_a_batch_and_two_threads_change_no_bit(kind):
    cache = Cache(40, 2, 40, kind)
    sequences = [
        (random_q(tokens, 8, 40), random_table(40, 9, tokens), first)
        for tokens, first in ((1, 100), (17, 0), (1, 0), (33, 60), (9, 15))
    ]
    together = cache.attend(sequences, threads=2)
    for sequence, got in zip(sequences, together, strict=True):
        np.testing.assert_array_equal(cache.attend([sequence])[0], got)


@pytest.mark.parametrize("record", ["q8", "bf16"])
@pytest.mark.parametrize("shared, head_dim", [(1, 64), (5, 128), (4, 192)])
@pytest.mark.parametrize("split", [False, True])
def test_outputs_as_records_are_those_of_the_plain_outputs(record, shared, head_dim, split):
    cache, table = Cache(LONG, 2, head_dim, "int16"), random_table(LONG, LONG)
    q = random_q(11, 2 * shared, head_dim)
    (plain,) = cache.attend([(q, table, SEGMENT - 5)], split=split)
    (records,) = cache.attend([(q, table, SEGMENT - 5)], split=split, record=record)
    for row, got in zip(plain, records, strict=True):
        content = record_content(row.reshape(-1), record)
        np.testing.assert_array_equal(got[: len(content)], content)


@pytest.mark.parametrize("kind", KV_KINDS)
def test_garbage_beyond_the_last_position_does_not_matter(kind):
    cache, table = Cache(4, 1, 24, kind), random_table(4, 2)
    q = random_q(3, 2, 24)
    clean = cache.attend([(q, table, 20)])[0]
    cache.exact_k[table[1], :, :, 7:], cache.exact_v[table[1], :, 7:] = np.nan, np.nan
    cache.pack()
    np.testing.assert_array_equal(cache.attend([(q, table, 20)])[0], clean)


@pytest.mark.parametrize("kind", KV_KINDS)
def test_large_scores_do_not_overflow(kind):
    cache, table = Cache(4, 1, 16, kind), random_table(4, 3)
    q = 300 * random_q(8, 2, 16)
    got = cache.attend([(q, table, 30)])[0]
    # a score of 1000 is rounded by up to 1000 / 2^14 where queries are codes
    np.testing.assert_allclose(got, cache.expected(q, table, 30), atol=2e-5 if kind in FLOATS else 0.1)


@pytest.mark.parametrize("kind", CODES)
def test_the_largest_codes_do_not_overflow(kind):
    cache, table = Cache(8, 1, 64, kind), random_table(8, 8)
    cache.exact_k[:], cache.exact_v[:] = 1, -1
    cache.pack()
    q = np.full((1, 8, 64), 0.25, np.float32)
    # bfloat16 scales were rounded up by up to 1/128, which the largest code makes up for but for its own rounding
    np.testing.assert_allclose(cache.attend([(q, table, 127)])[0], -1, rtol=1 / 127)


@pytest.mark.parametrize("where", ["exact_k", "exact_v"])
@pytest.mark.parametrize("kind", KV_KINDS)
def test_a_nan_in_the_context_is_not_hidden(kind, where):
    cache, table = Cache(8, 1, 16, kind), random_table(8, 6)
    getattr(cache, where)[table[0], :, 5, 3] = np.nan
    cache.pack()
    for first in (20, 90):
        got = cache.attend([(random_q(1, 1, 16), table, first)])[0]
        assert np.isnan(got).all() or (where == "exact_v" and kind in FLOATS and np.isnan(got[..., 3]).all())


# ||got - exact|| / ||exact|| over 1000 positions of normal keys and values. Rounded keys count most: a product of a
# score is off by up to 2^-12 of itself in float16 and 2^-9 in bfloat16, and in int16 and int8 by 2^-14 and 2^-8 of the
# largest of 32. A third to a half is room for other numbers.
BUDGETS = {"f32": 1e-6, "f16": 7e-4, "bf16": 5e-3, "int16": 5e-4, "int8": 2e-2}


@pytest.mark.parametrize("kind", KV_KINDS)
def test_each_kind_keeps_to_its_budget(kind):
    cache, table = Cache(64, 2, 128, kind), random_table(64, 63)
    q = 2 * random_q(8, 16, 128)
    got, exact = cache.attend([(q, table, 992)])[0], cache.exact(q, table, 992)
    error = np.linalg.norm(got - exact) / np.linalg.norm(exact)
    assert BUDGETS[kind] / 10 < error < BUDGETS[kind]


@pytest.mark.parametrize("split", [False, True])
def test_query_blocks_that_nobody_wants_are_left_out(split):
    cache, table = Cache(LONG, 2, 16, "int16"), random_table(LONG, LONG)
    long, short = (random_q(tokens, 4, 16) for tokens in (2 * QUERY_BLOCK + 3, 1))
    sequences = [(long, table, SEGMENT - 10), (short, table, 2 * SEGMENT), (short, table, 5)]
    every = cache.attend(sequences, split=split)
    got = cache.attend(sequences, split=split, threads=2, wanted=[0, 0, 1, 0, 1])
    assert np.isnan(got[0][: 2 * QUERY_BLOCK]).all()
    assert np.isnan(got[1]).all()
    np.testing.assert_array_equal(got[0][2 * QUERY_BLOCK :], every[0][2 * QUERY_BLOCK :])
    np.testing.assert_array_equal(got[2], every[2])
