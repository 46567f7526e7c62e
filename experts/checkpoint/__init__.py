"""Checkpoints: GGUF files and safetensors folders, opened by mmap. No pickle is read and no code is run."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import CheckpointError, UnsupportedModelError
from .base import Checkpoint, RawTensor, blank_tensor
from .gguf import open_gguf
from .joined import JoinedTensor, Plane, Tensor
from .mapping import check_unchanged, release
from .safetensors import CONFIG, open_config, open_safetensors

__all__ = [
    "Checkpoint",
    "JoinedTensor",
    "Plane",
    "RawTensor",
    "Tensor",
    "blank_tensor",
    "check_unchanged",
    "open_checkpoint",
    "open_header",
    "release",
]


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a .gguf file (any part of a split one), a safetensors folder, or a .safetensors file beside its config.json.

    Raises CheckpointError for a missing or broken file, UnsupportedModelError for a kind of file that is not read.
    """
    with _readable(path):
        return _open(Path(os.path.expanduser(path)))


def open_header(path: str | Path) -> Checkpoint | None:
    """What is known before the weights are there: a .gguf file that was cut behind its header, or a config.json without
    weights beside it, or its folder. Its tensors have no data. None for what is not such a file or folder.

    Raises CheckpointError where the header itself is broken, UnsupportedModelError as `open_checkpoint`.
    """
    with _readable(path):
        file = Path(os.path.expanduser(path))
        if file.suffix == ".gguf" and file.is_file():
            return open_gguf(file, header_only=True)
        return open_config(file) if file.is_dir() or file.name == CONFIG else None


@contextmanager
def _readable(path: str | Path) -> Iterator[None]:
    try:
        yield
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
