"""Rotation and store in torch against the CPU's kernels, bit for bit."""

import numpy as np
import pytest
import torch
from isotherm.cpu_kernels.kv_layout import KV_KINDS
from isotherm.gpu_kernels.kernels import Sequences
from isotherm.gpu_kernels.reference.kv import store
from isotherm.gpu_kernels.reference.rope import rotate
from support.device_kv import empty_cache, heads_of, parts_of
from support.rope import BLOCKS, EPS, Case
from support.torch_values import count_of

SPARE = 2  # rows of the buffers beyond the step's tokens


def buffer(x):
    """Rows [T, n] of heads, and some more of 7."""
    return torch.nn.functional.pad(torch.from_numpy(x).flatten(1), (0, 0, 0, SPARE), value=7.0)


def run(case, mode=0, kind="f32", clip=0.0):
    """(q, parts) as the CPU's kernel gives them, but by torch."""
    heads, kv_heads, head_dim = case.shape
    q, k, v = (buffer(x) for x in (case.q, case.k, case.v))
    norms = None
    if mode:
        norms = tuple(
            torch.from_numpy(weight[: head_dim if mode == 1 else count * head_dim])
            for weight, count in ((case.q_norm, heads), (case.k_norm, kv_heads))
        )
    turns = torch.from_numpy(case.cosines), torch.from_numpy(case.sines)
    spare = np.zeros(SPARE, np.int64)
    positions, slots = (torch.from_numpy(np.concatenate([x, spare])) for x in (case.positions, case.slots))
    sequences = Sequences(positions, slots, torch.zeros_like(slots), torch.zeros(1, BLOCKS, dtype=torch.int64))
    count = count_of(len(case.q))
    rotate(q, k, norms, turns, heads_of(*case.shape, mode, EPS, clip), sequences, count)
    cache = empty_cache(kind, kv_heads, BLOCKS, head_dim)
    store(k, v, cache, sequences, count)
    assert (q[len(case.q) :] == 7).all()
    assert (k[len(case.q) :] == 7).all()
    return q[: len(case.q)].unflatten(1, (heads, head_dim)).numpy(), parts_of(cache)


def assert_same(got, expected):
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("head_dim", [8, 16, 24, 40, 64, 80, 96, 128, 200, 256])
def test_queries_and_keys_are_those_of_the_cpu(head_dim, mode):
    case = Case(7, head_dim=head_dim)
    assert_same(run(case, mode), case.run(mode, head_dim**-0.5))


@pytest.mark.parametrize("rotary_dim", [2, 8, 12, 32, 34])
def test_what_lies_beyond_the_rotary_part_is_that_of_the_cpu(rotary_dim):
    case = Case(3, head_dim=64, rotary_dim=rotary_dim)
    assert_same(run(case), case.run(0, 0.125))


def test_a_clip_after_a_norm_is_that_of_the_cpu():
    case = Case(5, head_dim=24)
    case.q[1, 0, 3] = np.nan
    got = run(case, 2, clip=0.5)
    assert_same(got, case.run(2, 24**-0.5, clip=0.5))
    assert abs(np.nan_to_num(got[0])).max() < 5


@pytest.mark.parametrize("kind", KV_KINDS)
@pytest.mark.parametrize("head_dim", [8, 16, 24, 40, 64, 80, 128, 256])
def test_the_cache_holds_the_bytes_that_the_cpu_writes(head_dim, kind):
    case = Case(BLOCKS * 16 - 5, head_dim=head_dim)
    case.k[3], case.v[4] = 0, 0
    case.k[5, :, 1], case.v[6, :, 3] = 1e4, -1e7  # the latter is no float16
    case.k[7] *= 1e-28
    case.v[8] *= 1e-31  # on both sides of the magnitude below which all is zero
    case.k[9] *= 1e-41
    assert_same(run(case, kind=kind), case.run(0, head_dim**-0.5, kind))


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", KV_KINDS)
def test_what_is_not_finite_becomes_the_bytes_that_the_cpu_writes(kind, bad):
    case = Case(3, head_dim=40)
    case.v[1, 1, 7], case.k[2, 0, 3], case.k[2, 1, 38] = bad, bad, bad
    assert_same(run(case, kind=kind), case.run(0, 40**-0.5, kind))
