"""Norm, rotation and the store into the cache by Triton kernels, in the interpreter, against torch: bit for bit."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from isotherm.cpu_kernels.kv_layout import KV_KINDS
from isotherm.gpu_kernels.kernels import Sequences
from isotherm.gpu_kernels.reference import TorchKernels
from isotherm.gpu_kernels.triton_kernels import triton_kernels
from support.device_kv import empty_cache, heads_of
from support.rope import BLOCKS, EPS, Case
from support.torch_values import count_of, empty_record, tensor

pytest.importorskip("triton")
KERNELS = TorchKernels(), triton_kernels()
SPARE = 2  # rows of the buffers beyond the step's tokens


@pytest.fixture(autouse=True)
def quiet():
    with np.errstate(all="ignore"):  # as a card does
        yield


def same(tensors, others):
    for one, other in zip(tensors, others, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def buffer(x):
    """Rows [T, n] of heads, and some more of 7; wider than they need be, as parts of a wider matrix are."""
    rows = torch.nn.functional.pad(torch.from_numpy(x).flatten(1), (0, 5, 0, SPARE), value=7.0)
    return rows[:, :-5]


def sequences(case):
    spare = np.zeros(SPARE, np.int64)
    positions, slots = (tensor(np.concatenate([x, spare])) for x in (case.positions, case.slots))
    return Sequences(positions, slots, torch.zeros_like(slots), torch.zeros(1, BLOCKS, dtype=torch.int64))


def turned(kernels, case, mode, clip=0.0):
    heads, kv_heads, head_dim = case.shape
    q, k = buffer(case.q), buffer(case.k)
    sizes = {0: None, 1: (head_dim, head_dim), 2: (heads * head_dim, kv_heads * head_dim)}[mode]
    norms = sizes and (tensor(case.q_norm[: sizes[0]]), tensor(case.k_norm[: sizes[1]]))
    turns = tensor(case.cosines), tensor(case.sines)
    shape = heads_of(*case.shape, mode, EPS, clip)
    kernels.rotate(q, k, norms, turns, shape, sequences(case), count_of(len(case.q)))
    return q, k


def stored(kernels, case, kind):
    _, kv_heads, head_dim = case.shape
    cache = empty_cache(kind, kv_heads, BLOCKS, head_dim)
    kernels.store(buffer(case.k), buffer(case.v), cache, sequences(case), count_of(len(case.k)))
    return (cache.memory,)


@pytest.mark.parametrize("columns", [1, 16, 63, 64, 65, 576, 2056])
@pytest.mark.parametrize("forms", [{"plain", "q8"}, {"bf16"}], ids=["both", "bf16"])
def test_the_norm_of_rows_is_that_of_torch(columns, forms):
    x, weight = np.random.default_rng(columns).standard_normal((2, 3, columns), np.float32)
    x[1] *= 1e-38
    records = [empty_record(4, columns, forms) for _ in KERNELS]
    for kernels, out in zip(KERNELS, records, strict=True):
        kernels.rms_norm(tensor(x), tensor(weight[0]), 1e-6, out, count_of(2))
    forms = [[x.float() for x in (r.plain, r.codes, r.scales) if x is not None] for r in records]
    same(*forms)


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("head_dim", [8, 24, 80, 128])
def test_queries_and_keys_are_those_of_torch(head_dim, mode):
    case = Case(3, head_dim=head_dim)
    same(*(turned(kernels, case, mode) for kernels in KERNELS))


@pytest.mark.parametrize("rotary_dim", [2, 12, 34])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_what_lies_beyond_the_rotary_part_is_not_turned(rotary_dim, mode):
    case = Case(3, head_dim=64, rotary_dim=rotary_dim)
    same(*(turned(kernels, case, mode) for kernels in KERNELS))


@pytest.mark.parametrize("mode", [0, 2])
def test_a_clip_lets_a_nan_pass(mode):
    case = Case(3, head_dim=24)
    case.q[1, 0, 3] = np.nan
    got = [turned(kernels, case, mode, clip=0.5) for kernels in KERNELS]
    same(*got)
    assert got[1][0].isnan().any()


def test_a_clip_before_the_norm_of_a_head_is_refused():
    with pytest.raises(ValueError, match="clip"):
        turned(triton_kernels(), Case(1), 1, clip=0.5)


@pytest.mark.parametrize("kind", KV_KINDS)
@pytest.mark.parametrize("head_dim", [8, 24, 64, 80, 256])
def test_the_cache_holds_the_bytes_that_torch_writes(head_dim, kind):
    case = Case(12, head_dim=head_dim)
    case.k[3], case.v[4] = 0, 0
    case.k[5, :, 1], case.v[6, :, 3] = 1e4, -1e7  # the latter is no float16
    case.k[7] *= 1e-28
    case.v[8] *= 1e-31  # on both sides of the magnitude below which all is zero
    case.k[9] *= 1e-41
    same(*(stored(kernels, case, kind) for kernels in KERNELS))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", KV_KINDS)
def test_what_is_not_finite_becomes_the_bytes_that_torch_writes(kind, bad):
    case = Case(3, head_dim=40)
    case.v[1, 1, 7], case.k[2, 0, 3], case.k[2, 1, 38] = bad, bad, bad
    seen = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}.get(kind, torch.uint8)
    # which of the NaNs a float16 is depends on the card
    same(*([x.view(seen).float() for x in stored(kernels, case, kind)] for kernels in KERNELS))


def test_an_unknown_kind_of_cache_is_refused_by_name():
    cache = replace(empty_cache("f32", 1, 1, 16), kind="int4")
    with pytest.raises(ValueError, match="int4"):
        triton_kernels().store(torch.zeros(1, 16), torch.zeros(1, 16), cache, sequences(Case(1)), count_of(1))
