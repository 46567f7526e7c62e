"""Triton's kernels are compiled to the code of real cards, of which none need be here."""

import os
import subprocess
import sys

import pytest
from isotherm.gpu_kernels import triton_kernels
from isotherm.gpu_kernels.device import DeviceError
from support.compiled import assert_compiled, assert_rounds_as_the_cpu, compiled_by

pytest.importorskip("triton")
NAMES = {"to_record", "linear", "embed", "align", "gate_up", "down", "combine"}


@pytest.fixture(scope="module", params=[80, 89])
def compiled(request, tmp_path_factory):
    """What `compile_kernels` tells of each kernel, for an architecture."""
    return compiled_by(request.param, "support.launches", tmp_path_factory.mktemp("triton"))


def test_every_kernel_is_compiled(compiled):
    assert_compiled(compiled, NAMES)


def test_nothing_is_rounded_but_as_the_cpu_does(compiled):
    assert_rounds_as_the_cpu(compiled)


def test_matrix_units_multiply_the_codes_of_many_tokens(compiled):
    linear = [one for one in compiled if one["name"] == "linear_kernel" and "form='codes'" in one["constants"]]
    found = {("'M': 32" in one["constants"], "s32.s8.s8.s32" in one["ptx"]) for one in linear}
    assert found == {(True, True), (False, False)}


def test_the_package_can_be_imported_without_triton():
    code = "import sys, isotherm.gpu_kernels.triton_kernels; sys.exit('triton' in sys.modules)"
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


def test_without_triton_its_kernels_are_refused(monkeypatch):
    monkeypatch.setattr(triton_kernels, "find_spec", lambda name: None)
    with pytest.raises(DeviceError, match=r"pip install 'isotherm\[gpu\]'"):
        triton_kernels.triton_kernels()
