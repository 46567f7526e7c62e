"""The Triton kernels around attention are compiled to the code of real cards, of which none need be here."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
COMPILE = Path(__file__).parents[1] / "support" / "compile_kernels.py"
MOST_SHARED = 99 << 10  # bytes that a block of threads may have on the smallest of these cards
NAMES = {"dot", "rms_norm", "rotate", "store", "attend_parts", "merge_parts", "attend_tile", "route", "sample"}


@pytest.fixture(scope="module", params=[80, 89])
def compiled(request, tmp_path_factory):
    """What `compile_kernels` tells of each kernel, for an architecture."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    del environment["TRITON_INTERPRET"]
    command = [sys.executable, str(COMPILE), str(request.param), "support.step_launches"]
    return json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, timeout=250).stdout)


def test_every_kernel_is_compiled(compiled):
    assert {one["name"] for one in compiled} == {f"{name}_kernel" for name in NAMES}
    assert all(one["code"] > 1000 and one["shared"] <= MOST_SHARED for one in compiled)


def test_nothing_is_rounded_but_as_the_cpu_does(compiled):
    assert not any(one["fuses"] for one in compiled)
    for word in ("div.full", ".approx", ".ftz", "tf32"):
        assert not [one["name"] for one in compiled if word in one["ptx"]]


def test_matrix_units_multiply_codes_but_not_floats(compiled):
    for one in compiled:
        if one["name"].startswith("attend"):
            assert ("s32.s8.s8.s32" in one["ptx"]) == ("'BITS': 0" not in one["constants"])
            assert ("mma" in one["ptx"]) == ("s32.s8.s8.s32" in one["ptx"])


def test_floats_are_multiplied_in_fused_chains_that_begin_with_what_is_added_to(compiled):
    """As `fused_dots` has it, and so with the CPU's bits: 16 x 64 sums of 16 products in 128 threads."""
    (ptx,) = [one["ptx"] for one in compiled if one["name"] == "dot_kernel"]
    chains = {}  # by the last sum, how many products it holds
    for target, total in re.findall(r"fma\.rn\.f32\s+(%r\d+), %r\d+, %r\d+, (%r\d+)", ptx):
        chains[target] = chains.pop(total, 0) + 1
    assert list(chains.values()) == [16] * 8
    assert not re.search(r"(add|mul)(\.rn)?\.f32", ptx)
