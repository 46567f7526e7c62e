"""What `compile_kernels` tells of Triton's kernels, compiled in a process of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

MOST_SHARED = 99 << 10  # bytes that a block of threads may have on the smallest of these cards
ROUNDS_OTHERWISE = "div.full", ".approx", ".ftz", "tf32"


def compiled_by(arch: int, launches: str, cache: Path) -> list[dict[str, Any]]:
    """Of each kernel that the module `launches` launches, for an architecture; cache: an empty folder."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), TRITON_CACHE_DIR=str(cache))
    del environment["TRITON_INTERPRET"]
    command = [sys.executable, str(Path(__file__).parent / "compile_kernels.py"), str(arch), launches]
    told = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, timeout=250).stdout
    kernels: list[dict[str, Any]] = json.loads(told)
    return kernels


def assert_compiled(kernels: list[dict[str, Any]], names: set[str]) -> None:
    assert {one["name"] for one in kernels} == {f"{name}_kernel" for name in names}
    assert all(one["code"] > 1000 and one["shared"] <= MOST_SHARED for one in kernels)


def assert_rounds_as_the_cpu(kernels: list[dict[str, Any]]) -> None:
    """Products and sums are fused where it is said, and quotients and powers are no approximations."""
    assert not any(one["fuses"] for one in kernels)
    for word in ROUNDS_OTHERWISE:
        assert not [one["name"] for one in kernels if word in one["ptx"]]
