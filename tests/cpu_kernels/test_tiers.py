"""The kernels' tests once more on narrower instruction sets than this machine's, and the same bits on all of them."""

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from isotherm.cpu_kernels.features import host_tier, tier_of
from isotherm.cpu_kernels.layout import CODES
from llvmlite import binding as llvm
from numba.core.codegen import get_host_cpu_features

HERE = Path(__file__).parent
AVX2 = "+sse4.2,+popcnt,+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt"
AVX512_VNNI = AVX2 + ",+avx512f,+avx512bw,+avx512vl,+avx512vnni"
# The 256-bit instruction in the encoding of AVX-512, since a CPU with that seldom has the other; all else is the same.
VNNI_256 = AVX2 + ",+avx512f,+avx512vl,+avx512vnni"
TIERS = {
    "avx512_vnni": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": AVX512_VNNI},
    "avx_vnni": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": VNNI_256},
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

# Kernels by name, all or those named: their assembly, or their IR. The cache must be empty: it holds neither.
INSPECT = """
import json
import sys
from isotherm.cpu_kernels import jit
from isotherm.cpu_kernels.program import OPS
from isotherm.cpu_kernels.tiles import PRODUCTS, READERS

kernels = {f"{kind} product": (kernel, jit.PRODUCT_SIGNATURE) for kind, kernel in PRODUCTS.items()}
kernels |= {f"{kind} reader": (kernel, jit.READER_SIGNATURE) for kind, kernel in READERS.items()}
kernels |= {name: (op.kernel, jit.OP_SIGNATURE) for name, op in OPS.items()}
kernels = {name: kernels[name] for name in sys.argv[3:] or kernels}
for kernel, signature in kernels.values():
    kernel.compile(signature)
libraries = {name: kernel.overloads[signature].library for name, (kernel, signature) in kernels.items()}
with open(sys.argv[1], "w") as file:
    json.dump({name: getattr(library, sys.argv[2])() for name, library in libraries.items()}, file)
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


@pytest.mark.parametrize("tier", ["avx2", "portable"])
def test_the_kernels_tests_pass_on(tier: str) -> None:
    """The tiers in between differ from their neighbours in products alone, whose bits are compared on all of them."""
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


def inspect(tmp_path: Path, what: str, *names: str, **settings: str) -> dict[str, str]:
    """By kernel its "get_asm_str" or "get_llvm_str", compiled under these settings."""
    arguments = ["-c", INSPECT, str(tmp_path / "kernels.json"), what, *names]
    run(arguments, NUMBA_CACHE_DIR=str(tmp_path / "cache"), **settings)
    return json.loads((tmp_path / "kernels.json").read_text())


def test_alder_lake_gets_its_own_products_and_nothing_of_avx512(tmp_path: Path) -> None:
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("the tiers are those of x86")
    settings = {"NUMBA_CPU_NAME": "alderlake", "NUMBA_CPU_FEATURES": AVX2 + ",+avxvnni"}
    # mask registers, vectors of 512 bits and those beyond 16 exist in AVX-512 alone
    beyond = re.compile(r"zmm|%k[0-7]|[xy]mm(1[6-9]|2\d|3[01])")
    for name, assembly in inspect(tmp_path, "get_asm_str", **settings).items():
        assert beyond.search(assembly) is None, name
        integer = name.endswith("product") and name.split()[0] in CODES
        assert bool(re.search(r"vpdpbusd\s.*ymm", assembly)) == integer, name


def test_portable_products_compile_for_arm(tmp_path: Path) -> None:
    """What this machine can tell of another one: the IR is valid there and becomes vector instructions."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        target = llvm.Target.from_triple("aarch64-unknown-linux-gnu")
    except RuntimeError as error:
        pytest.skip(f"this build of LLVM generates no code for ARM: {error}")
    machine = target.create_target_machine(cpu="generic", features="+neon")
    names = [f"{kind} {part}" for kind in ("bf16", "q4k", "q6k", "iq4") for part in ("product", "reader")]
    for name, text in inspect(tmp_path, "get_llvm_str", *names, **TIERS["portable"]).items():
        assert "llvm.x86." not in text, name
        module = llvm.parse_assembly(re.sub(r'^target .*|"target-[a-z]+"="[^"]*"', "", text, flags=re.MULTILINE))
        module.triple, module.data_layout = target.triple, str(machine.target_data)
        module.verify()
        assembly = machine.emit_assembly(module)
        if name.endswith("product"):
            assert re.search(r"fmla\s+v\d+\.4s", assembly), name


def test_the_best_tier_is_chosen() -> None:
    def tier(features: str) -> str:
        return tier_of(frozenset(features.replace("+", "").split(","))).name

    assert tier(AVX2) == "avx2"
    assert tier(AVX2 + ",+avxvnni") == "avx_vnni"
    assert tier(VNNI_256) == "avx_vnni"
    assert tier(VNNI_256 + ",+avxvnni,+avx512bw") == "avx512_vnni"
    assert tier("+avx,+avxvnni") == "portable"
