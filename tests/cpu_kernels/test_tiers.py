"""The kernels' tests once more on narrower instruction sets than this machine's, and the same bits on all of them."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from isotherm.cpu_kernels.features import host_tier
from numba.core.codegen import get_host_cpu_features

HERE = Path(__file__).parent
AVX2 = "+sse4.2,+popcnt,+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt"
AVX512_VNNI = AVX2 + ",+avx512f,+avx512bw,+avx512vl,+avx512vnni"
TIERS = {
    "avx512_vnni": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": AVX512_VNNI},
    "avx2": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": AVX2},
    "portable": {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""},
}
HOST = set(get_host_cpu_features().split(","))
# Products of every kind with few and 8 tokens a call, also of numbers far apart, experts, which also quantise, and
# attention over each kind of cache.
DUMP = """
import sys
import numpy as np
from isotherm.cpu_kernels.features import host_tier
from isotherm.cpu_kernels.kv_layout import KV_KINDS
from isotherm.cpu_kernels.layout import KINDS
from support.kv import Cache, random_q, random_table
from support.matrices import Bank, multiply, random_matrix, random_rows, run_experts

assert host_tier().name == sys.argv[2], host_tier()
x = random_rows(15, 704)
wide = (x * np.exp2(np.random.default_rng(1).integers(-30, 30, x.shape))).astype(np.float32)
results = {kind: multiply(random_matrix(kind, 33, 704), x) for kind in KINDS}
results |= {f"{kind} wide": multiply(random_matrix(kind, 33, 704), wide) for kind in KINDS}
ids = np.array([[t % 3, (t + 1) % 3] for t in range(15)])
for kind in KINDS:
    inner, outs, _ = run_experts(Bank.random(3, 96, 160, (kind,) * 3), random_rows(15, 96), ids)
    results |= {f"{kind} inner": inner, f"{kind} outs": outs}
for kind in KV_KINDS:
    for head_dim in (24, 128):
        sequence = random_q(11, 12, head_dim), random_table(80, 70), 1050
        results[f"{kind} {head_dim} attention"] = Cache(80, 2, head_dim, kind).attend([sequence])[0]
np.savez(sys.argv[1], **results)
"""

pytestmark = pytest.mark.timeout(900)  # compiles all kernels for each tier where the cache is cold


def needs(tier: str) -> None:
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("the tiers are those of x86")
    missing = set(filter(None, TIERS[tier]["NUMBA_CPU_FEATURES"].split(","))) - HOST
    if missing:
        pytest.skip(f"this CPU lacks {', '.join(sorted(missing))}")


def run(arguments: list[str], **settings: str) -> None:
    """Python in the tests' environment under these settings of the compiler."""
    paths = [str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | settings
    done = subprocess.run(
        [sys.executable, *arguments], cwd=HERE.parents[1], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.mark.parametrize("tier", TIERS)
def test_the_kernels_tests_pass_on(tier: str) -> None:
    needs(tier)
    files = sorted(str(path) for path in HERE.glob("test_*.py") if path.name != Path(__file__).name)
    run(["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files], **TIERS[tier])


@pytest.mark.parametrize("tier", TIERS)
def test_products_have_the_same_bits_on(tier: str, tmp_path: Path) -> None:
    needs(tier)
    run(["-c", DUMP, str(tmp_path / "here.npz"), host_tier().name])
    run(["-c", DUMP, str(tmp_path / "there.npz"), tier], **TIERS[tier])
    with np.load(tmp_path / "here.npz") as here, np.load(tmp_path / "there.npz") as there:
        assert here.files == there.files
        for name in here.files:
            np.testing.assert_array_equal(here[name], there[name], err_msg=name)
