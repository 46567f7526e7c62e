"""The cache of compiled kernels: a second process compiles nothing, another CPU gets another folder."""

import json
import os
import subprocess
import sys

from isotherm.cpu_kernels import jit

COUNT_COMPILATIONS = """
import json
from isotherm.cpu_kernels.jit import OP_SIGNATURE, PRODUCT_SIGNATURE, address_of
from isotherm.cpu_kernels.program import OPS
from isotherm.cpu_kernels.tiles import PRODUCTS

kernels = [OPS["embed"].kernel, OPS["quantise"].kernel]
for kernel in kernels:
    address_of(kernel, OP_SIGNATURE)
address_of(PRODUCTS["q4"], PRODUCT_SIGNATURE)
kernels.append(PRODUCTS["q4"])
print(json.dumps([sum(k.stats.cache_misses.values()) for k in kernels]))
"""


def compilations(cache) -> list[int]:
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    run = subprocess.run(
        [sys.executable, "-c", COUNT_COMPILATIONS],
        env={**environment, "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(run.stdout)


def test_a_second_process_compiles_nothing(tmp_path):
    assert compilations(tmp_path) == [1, 1, 1]
    assert compilations(tmp_path) == [0, 0, 0]


def test_other_cpu_features_get_another_folder(monkeypatch):
    here = jit.cache_folder()
    monkeypatch.setattr(jit, "target_features", lambda: frozenset({"sse2"}))
    assert jit.cache_folder() != here
