"""The one way to compile a kernel: nogil, cached in a folder that is keyed by everything the code depends on."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite
import numba
from numba.core import config
from numba.extending import intrinsic as _intrinsic

from .features import target_features

F = TypeVar("F", bound=Callable[..., Any])


def cache_folder() -> Path:
    """Where compiled kernels lie: one folder per version of the sources, of the compiler and of the CPU features.

    Numba's own key sees only the file that defines a function, not the intrinsics that it calls from other files.
    """
    key = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__} {sorted(target_features())}".encode())
    for source in sorted(Path(__file__).parent.rglob("*.py")):
        key.update(source.read_bytes())
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "isotherm" / "kernels" / key.hexdigest()[:16]


if not config.CACHE_DIR:
    config.CACHE_DIR = str(cache_folder())


def kernel(function: F) -> F:
    """Compile `function` for arrays and scalars: no GIL, cached. Arithmetic stays strict; reductions are explicit."""
    return cast(F, numba.njit(nogil=True, cache=True, error_model="numpy")(function))


def intrinsic(function: Callable[..., Any]) -> Any:
    """An instruction of our own: `function(typing_context, *types)` returns (signature, code generator)."""
    return _intrinsic(function)
