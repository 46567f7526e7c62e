"""Triton's kernels are compiled to the code of real cards, of which none need be here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from isotherm.gpu_kernels import triton_kernels
from isotherm.gpu_kernels.device import DeviceError

pytest.importorskip("triton")
COMPILE = Path(__file__).parents[1] / "support" / "compile_kernels.py"
MOST_SHARED = 99 << 10  # bytes that a block of threads may have on the smallest of these cards
NAMES = {"to_record", "linear", "embed", "align", "gate_up", "down", "combine"}


@pytest.fixture(scope="module", params=[80, 89])
def compiled(request, tmp_path_factory):
    """What `compile_kernels` tells of each kernel, for an architecture."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    del environment["TRITON_INTERPRET"]
    command = [sys.executable, str(COMPILE), str(request.param), "support.launches"]
    return json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, timeout=200).stdout)


def test_every_kernel_is_compiled(compiled):
    assert {one["name"] for one in compiled} == {f"{name}_kernel" for name in NAMES}
    assert all(one["code"] > 1000 and one["shared"] <= MOST_SHARED for one in compiled)


def test_nothing_is_rounded_but_as_the_cpu_does(compiled):
    """Products and sums are fused where it is said, and quotients and powers are no approximations."""
    assert not any(one["fuses"] for one in compiled)
    for word in ("div.full", ".approx", ".ftz"):
        assert not [one["name"] for one in compiled if word in one["ptx"]]


def test_matrix_units_multiply_the_codes_of_many_tokens(compiled):
    linear = [one for one in compiled if one["name"] == "linear_kernel" and "form='codes'" in one["constants"]]
    for one in linear:
        assert ("s32.s8.s8.s32" in one["ptx"]) == ("'M': 32" in one["constants"])


def test_the_package_can_be_imported_without_triton():
    code = "import sys, isotherm.gpu_kernels.triton_kernels; sys.exit('triton' in sys.modules)"
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


def test_without_triton_its_kernels_are_refused(monkeypatch):
    monkeypatch.setattr(triton_kernels, "find_spec", lambda name: None)
    with pytest.raises(DeviceError, match=r"pip install 'isotherm\[gpu\]'"):
        triton_kernels.triton_kernels()
