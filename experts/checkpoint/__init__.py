"""Checkpoints: GGUF files and safetensors folders, opened by mmap. No pickle is read and no code is run."""

import os
from pathlib import Path

from ..errors import CheckpointError, UnsupportedModelError
from .base import Checkpoint, RawTensor
from .gguf import open_gguf
from .joined import JoinedTensor, Plane, Tensor
from .mapping import check_unchanged, release
from .safetensors import open_safetensors

__all__ = [
    "Checkpoint",
    "JoinedTensor",
    "Plane",
    "RawTensor",
    "Tensor",
    "check_unchanged",
    "open_checkpoint",
    "release",
]


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a .gguf file (any part of a split one), a safetensors folder, or a .safetensors file beside its config.json.

    Raises CheckpointError for a missing or broken file, UnsupportedModelError for a kind of file that is not read.
    """
    try:
        return _open(Path(os.path.expanduser(path)))
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
        raise CheckpointError(f"{error.filename or path}: {problem}; check the path and its permissions") from error


def _open(path: Path) -> Checkpoint:
    if not path.exists():
        raise CheckpointError(f"{path}: no such file or folder; check the path (nothing is downloaded)")
    if path.is_dir() or path.suffix == ".safetensors":
        return open_safetensors(path)
    if path.suffix == ".gguf":
        return open_gguf(path)
    raise UnsupportedModelError(f"{path}: not a model that is read; name a .gguf file or a folder of safetensors")
