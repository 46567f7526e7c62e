"""The Triton kernels around attention are compiled to the code of real cards, of which none need be here."""

import re

import pytest
from support.compiled import assert_compiled, assert_rounds_as_the_cpu, compiled_by

pytest.importorskip("triton")
NAMES = {"dot", "rms_norm", "rotate", "store", "attend_parts", "merge_parts", "attend_tile", "route", "sample"}


@pytest.fixture(scope="module", params=[80, 89])
def compiled(request, tmp_path_factory):
    """What `compile_kernels` tells of each kernel, for an architecture."""
    return compiled_by(request.param, "support.step_launches", tmp_path_factory.mktemp("triton"))


def test_every_kernel_is_compiled(compiled):
    assert_compiled(compiled, NAMES)


def test_nothing_is_rounded_but_as_the_cpu_does(compiled):
    assert_rounds_as_the_cpu(compiled)


def test_matrix_units_multiply_codes_but_not_floats(compiled):
    attention = [one for one in compiled if one["name"].startswith("attend")]
    found = {("'BITS': 0" in one["constants"], "s32.s8.s8.s32" in one["ptx"], "mma" in one["ptx"]) for one in attention}
    assert found == {(True, False, False), (False, True, True)}


def test_floats_are_multiplied_in_fused_chains_that_begin_with_what_is_added_to(compiled):
    """As `fused_dots` has it, and so with the CPU's bits: 16 x 64 sums of 16 products in 128 threads."""
    (ptx,) = [one["ptx"] for one in compiled if one["name"] == "dot_kernel"]
    chains = {}  # by the last sum, how many products it holds
    for target, total in re.findall(r"fma\.rn\.f32\s+(%r\d+), %r\d+, %r\d+, (%r\d+)", ptx):
        chains[target] = chains.pop(total, 0) + 1
    assert list(chains.values()) == [16] * 8
    assert not re.search(r"(add|mul)(\.rn)?\.f32", ptx)
