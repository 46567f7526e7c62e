"""Matrix products over packed tiles against plain NumPy at the edges of tiles, and bit for bit against themselves."""

import numpy as np
import pytest
from isotherm.cpu_kernels import reference
from isotherm.cpu_kernels.descriptor import N_TOKENS
from isotherm.cpu_kernels.down import FEW_PAIRS, MOST_TILES
from isotherm.cpu_kernels.layout import CODES, KINDS, padded
from isotherm.cpu_kernels.matmul import EMBED_FIELDS, embed
from isotherm.cpu_kernels.tiles import reader_address
from support.experts_sum import combined
from support.matrices import Bank, line_aligned, multiply, random_matrix, random_rows, run_experts
from support.ops import run_op

COLUMNS = [32, 64, 96, 160, 704, 2880]
ROWS = [1, 15, 16, 17, 31, 33, 100]
TOKENS = [1, 7, 8, 9, 15, 16, 17, 31, 33]


def seen(x, matrix):
    """x as the matrix reads it."""
    return reference.recorded(x, matrix.record)


def assert_close(got, expected, x, w):
    """To float32's precision of the sums, whose terms may cancel: relative to sum |x| |w|."""
    assert got.dtype == np.float32
    bound = np.abs(x).astype(np.float64) @ np.abs(w).astype(np.float64).T
    assert (np.abs(got - expected) <= 2e-6 * bound + 1e-7 * np.abs(expected)).all()


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("kind", KINDS)
def test_linear_is_its_definition(kind, columns, rows):
    matrix, x = random_matrix(kind, rows, columns), random_rows(9, columns)
    x = seen(x, matrix)
    assert_close(multiply(matrix, x), reference.linear(x, matrix.values), x, matrix.values)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_token_gets_the_same_bits_in_any_company(kind, tokens):
    matrix, x = random_matrix(kind, 100, 160), random_rows(34, 160)
    all_alone = np.concatenate([multiply(matrix, row[None]) for row in x])
    for first in (0, 1, 34 - tokens):
        np.testing.assert_array_equal(multiply(matrix, x[first : first + tokens]), all_alone[first : first + tokens])


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_threads_and_chunks_change_no_bit(kind, chunk, threads):
    matrix, x = random_matrix(kind, 100, 96), random_rows(17, 96)
    np.testing.assert_array_equal(multiply(matrix, x, chunk=chunk, threads=threads), multiply(matrix, x))


@pytest.mark.parametrize("kind", KINDS)
def test_bias_and_clamp(kind):
    matrix, x, bias = random_matrix(kind, 33, 96), random_rows(9, 96), random_rows(1, 33)[0]
    plain = multiply(matrix, x)
    np.testing.assert_array_equal(multiply(matrix, x, bias=bias), plain + bias)
    limit = float(np.float32(np.abs(plain).mean()))
    np.testing.assert_array_equal(multiply(matrix, x, bias=bias, clamp=limit), np.clip(plain + bias, -limit, limit))


@pytest.mark.parametrize("kind", KINDS)
def test_add_takes_what_stands_there_and_the_bias(kind):
    matrix, x, bias, onto = random_matrix(kind, 33, 96), random_rows(9, 96), random_rows(1, 33)[0], random_rows(9, 33)
    plain = multiply(matrix, x)
    np.testing.assert_array_equal(multiply(matrix, x, bias=bias, onto=onto), onto + (plain + bias))


@pytest.mark.parametrize("onto", [False, True])
@pytest.mark.parametrize("taken", [[], [4], [0, 2, 3, 5, 8, 9, 10, 12, 16]])
def test_only_the_rows_that_are_listed_are_taken(taken, onto):
    matrix, x = random_matrix("q4", 33, 96), random_rows(17, 96)
    before = random_rows(17, 33) if onto else None
    expected = np.full((17, 33), 7, np.float32) if before is None else before.copy()
    expected[taken] = multiply(matrix, x, onto=before)[taken]
    np.testing.assert_array_equal(multiply(matrix, x, onto=before, taken=taken, threads=2), expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_is_seen_in_its_token_only(kind, bad):
    matrix, x = random_matrix(kind, 33, 96), random_rows(9, 96)
    clean = multiply(matrix, x, clamp=1.0)
    x[3, 40] = bad
    got = multiply(matrix, x, clamp=1.0)
    # a float infinity times a weight may well be infinite, and is clamped
    assert (np.isnan(got[3]) | ((np.abs(got[3]) == 1) & (not matrix.quantised and np.isinf(bad)))).all()
    np.testing.assert_array_equal(np.delete(got, 3, 0), np.delete(clean, 3, 0))


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("extreme", [-1.0, 1.0])
@pytest.mark.parametrize("kind", CODES)
def test_the_largest_codes_do_not_overflow(kind, extreme, largest):
    """Every code and activation at its end: integer sums of a group reach 32 x 128 x 127."""
    unsigned = CODES[kind].unsigned
    matrix = random_matrix(kind, 32, 128, code=unsigned.index(max(unsigned) if largest else min(unsigned)))
    x = np.full((9, 128), extreme, np.float32)
    assert_close(multiply(matrix, x), reference.linear(x, matrix.values), x, matrix.values)


@pytest.mark.parametrize("share", [2, 4])  # tiles of 4
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("kind", KINDS)
def test_embed_takes_rows_out(kind, columns, share):
    matrix = random_matrix(kind, 33, columns)
    tokens = np.array([32, 0, 15, 16, 31, 0, 17], np.int64)
    out = np.full((len(tokens), padded(columns) + 16), 7, np.float32)
    apart = line_aligned((2, 5, matrix.tile_bytes), 0xFF)
    shares = matrix.tiles.reshape(-1, share, matrix.tile_bytes)
    apart[: len(shares), :share] = shares
    fields = {
        "tokens": tokens,
        "w": apart,
        "share": share,
        "gap": apart.strides[0],
        "out": out,
        "out_stride": out.strides[0],
        "count_slot": N_TOKENS,
    }
    fields |= {"reader": reader_address(kind), "tile_bytes": matrix.tile_bytes, "spans": matrix.fields["spans"]}
    run_op(embed, EMBED_FIELDS, fields, step={N_TOKENS: len(tokens)}, threads=2)
    np.testing.assert_allclose(out[:, :columns], matrix.values[tokens], rtol=1e-6, atol=1e-6)
    assert not out[:, columns : padded(columns)].any() and (out[:, padded(columns) :] == 7).all()


EXPERT_KINDS = [("f32",) * 3, ("bf16",) * 3, ("f16", "bf16", "bf16"), ("q8",) * 3, ("q4", "q4", "q4m")]
EXPERT_KINDS += [("q4m", "q8", "q8")]
EXPERT_KINDS += [("q5", "q6k", "q5m"), ("iq4", "iq4", "nv4"), ("mx4",) * 3, ("q3k", "q3k", "q2k")]
EXPERT_KINDS += [("f8",) * 3, ("q4z", "q4zb", "q4b"), ("f8", "q8b", "f8"), ("bf16", "bf16", "q6k")]
EXPERT_KINDS += [("q4k", "q4k", "q6k"), ("q5k", "iq4k", "q4k")]
EXPERT_KINDS += [("q4", "q4", "f32"), ("f32", "f32", "q4"), ("f16", "q8", "q4"), ("q4m", "f32", "f32")]
MIXED = {  # token -> experts; expert 1 of 5 is never chosen
    "one token": [[4, 0]],
    "a few": [[0, 2], [3, 0], [4, 2], [0, 3], [2, 4]],
    "many": [[(0, 2, 3, 4)[(7 * t) % 4], (2, 3, 4, 0)[(7 * t) % 4]] for t in range(33)],
    "all to one": [[3]] * 33,
}


def expected_experts(bank, x, ids):
    """Outputs [T, K, hidden] by definition; the inner activations are rounded where `down` reads them so."""
    out = np.empty((*ids.shape, x.shape[1]), np.float32)
    for token, j in np.ndindex(ids.shape):
        gate, up, down = (part[ids[token, j]] for part in (bank.gate, bank.up, bank.down))
        row = x[token : token + 1]
        gated, plain = (reference.linear(seen(row, part), part.values) for part in (gate, up))
        inner = reference.gated(gated, plain)
        out[token, j] = reference.linear(seen(inner, down), down.values)
    return out


@pytest.mark.parametrize("case", MIXED)
@pytest.mark.parametrize("hidden, inner", [(64, 96), (100, 33), (32, 160)])
@pytest.mark.parametrize("kinds", EXPERT_KINDS, ids="-".join)
def test_experts_are_their_definition(kinds, hidden, inner, case):
    bank = Bank.random(5, hidden, inner, kinds)
    ids = np.array(MIXED[case], np.int64)
    x = random_rows(len(ids), hidden)
    _, outs, position = run_experts(bank, x, ids)
    expected = expected_experts(bank, x, ids)
    got = outs[position].reshape(expected.shape)
    # A last bit of the inner activations may round to the other int8 code or bfloat16: one part in 127 of one element.
    tolerance = 2e-6 if bank.down[0].record == "plain" else 3e-3
    assert np.abs(got - expected).max() <= tolerance * np.abs(expected).max()
    assert np.median(np.abs(got - expected)) <= 2e-6 * np.abs(expected).max()


@pytest.mark.parametrize("kinds", EXPERT_KINDS, ids="-".join)
def test_inner_columns_beyond_the_last_row_are_zero(kinds):
    bank = Bank.random(2, 64, 40, kinds)
    x, ids = random_rows(9, 64), np.array([[0], [1]] * 4 + [[0]], np.int64)
    between, _, _ = run_experts(bank, x, ids)
    inner = between.view({"plain": np.float32, "bf16": np.uint16, "q8": np.int8}[bank.down[0].record])
    assert inner[:, :40].any() and not inner[:, 40:64].any()


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("kinds", EXPERT_KINDS, ids="-".join)
def test_experts_give_a_token_the_same_bits_in_any_company(kinds, threads):
    bank = Bank.random(5, 64, 96, kinds)
    ids = np.array(MIXED["many"], np.int64)
    x = random_rows(len(ids), 64)
    _, outs, position = run_experts(bank, x, ids, threads=threads)
    together = outs[position].reshape(len(ids), 2, 64)
    for token in range(len(ids)):
        _, outs, position = run_experts(bank, x[token : token + 1], ids[token : token + 1])
        np.testing.assert_array_equal(outs[position], together[token])


def test_scratch_of_workers_does_not_overlap():
    matrix, x = random_matrix("q4", 320, 64), random_rows(33, 64)
    expected = multiply(matrix, x)
    for _ in range(20):
        np.testing.assert_array_equal(multiply(matrix, x, threads=3, chunk=1), expected)


@pytest.mark.parametrize("hidden, inner", [(64, 96), (100, 33), (416, 64)])
@pytest.mark.parametrize("tokens", [1, 5, 33])
@pytest.mark.parametrize("threads", [1, 3])
def test_adding_up_in_the_second_product_gives_the_bits_of_doing_so_afterwards(threads, tokens, hidden, inner):
    bank = Bank.random(5, hidden, inner, ("q4", "q4", "q8"))
    x, ids = random_rows(tokens, hidden), np.array([[t % 5, (t + 3) % 5, (2 * t + 1) % 5] for t in range(tokens)])
    ids[:, 2] = (ids[:, 0] + 1) % 5
    start = random_rows(tokens, hidden, 1)
    _, outs, position = run_experts(bank, x, ids)
    afterwards = combined(start, outs, position, np.tile(np.float32(1) / np.float32([1, 2, 3]), (tokens, 1)))
    at_once = start.copy()
    run_experts(bank, x, ids, threads=threads, onto=at_once)
    np.testing.assert_array_equal(at_once, afterwards)


def test_as_many_pairs_as_are_few_fill_the_scratch_and_no_more():
    bank = Bank.random(2, 64 * MOST_TILES // 4, 64, ("q4", "q4", "q4"))
    tokens = FEW_PAIRS // 2
    x, ids = random_rows(tokens, 16 * MOST_TILES), np.array([[0, 1]] * tokens)
    _, outs, position = run_experts(bank, x, ids)
    afterwards = combined(np.zeros_like(x), outs, position, np.tile(np.float32([1, 0.5]), (tokens, 1)))
    at_once = np.zeros_like(x)
    run_experts(bank, x, ids, onto=at_once, chunk=MOST_TILES)
    np.testing.assert_array_equal(at_once, afterwards)


def test_sums_go_to_the_rows_that_are_listed():
    bank = Bank.random(3, 64, 96, ("q4", "q4", "q8"))
    x, ids, rows = random_rows(2, 64), np.array([[0, 2], [1, 0]]), np.array([1, 4])
    start = random_rows(6, 64, 1)
    _, outs, position = run_experts(bank, x, ids)
    weights = np.tile(np.float32([1, 0.5]), (2, 1))
    expected = start.copy()
    expected[rows] = combined(start[rows], outs, position, weights)
    at_once = start.copy()
    run_experts(bank, x, ids, onto=at_once, taken=rows)
    np.testing.assert_array_equal(at_once, expected)
    np.testing.assert_array_equal(combined(start, outs, position, weights, rows=rows), expected)
