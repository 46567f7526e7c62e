"""Safetensors checkpoints: a folder with config.json and one file, or several with an index.

A file is a u64 header length, a JSON header {name: {dtype, shape, data_offsets}}, and the data. The header is checked
before any tensor is made of it.
"""

import hashlib
import json
import math
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from ..errors import CheckpointError, UnsupportedModelError
from .base import Checkpoint, RawTensor
from .mapping import REMEDY, check_disjoint, fingerprint, map_file

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_HEADER = 100_000_000  # bytes; the format's own limit
MAX_JSON = 64 << 20
MAX_DIMENSIONS = 8
DTYPE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
DTYPE_BYTES |= {"F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}


def open_safetensors(path: Path) -> Checkpoint:
    """Open a model folder, or one .safetensors file (with its shards, if it is one) beside a config.json.

    Raises CheckpointError for a broken or missing file, UnsupportedModelError for a folder of pickles.
    """
    folder = path if path.is_dir() else path.parent
    files, listed = _files(path, folder)
    config = _read_json(folder / CONFIG)
    tensors: dict[str, RawTensor] = {}
    sizes = []
    for file in files:
        data = map_file(file)
        sizes.append(data.size)
        for tensor in _tensors(file, data):
            if tensor.name in tensors:
                raise CheckpointError(
                    f"{file}: tensor {tensor.name!r} is also in {tensors[tensor.name].file}; {REMEDY}"
                )
            tensors[tensor.name] = tensor
    for name, file_name in listed.items():
        if name not in tensors or tensors[name].file.name != file_name:
            raise CheckpointError(f"{folder / file_name}: tensor {name!r}, listed in {INDEX}, is missing; {REMEDY}")
    return Checkpoint(path, "safetensors", config, tensors, fingerprint(list(tensors.values()), sizes))


def open_config(path: Path) -> Checkpoint | None:
    """What the config.json of a model folder says, for one whose weights are not all there; None for another.

    It has no tensors, and its fingerprint is of the config. Raises CheckpointError for a broken config.json.
    """
    folder = path if path.is_dir() else path.parent
    listed = _read_index(folder / INDEX) if (folder / INDEX).is_file() else {}
    shards = set(listed.values()) or {SINGLE}
    if all((folder / name).is_file() for name in shards) or not (folder / CONFIG).is_file():
        return None
    config = _read_json(folder / CONFIG)
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    return Checkpoint(folder, "safetensors", config, {}, digest)


def _files(path: Path, folder: Path) -> tuple[list[Path], dict[str, str]]:
    """The files to map, and the index's {tensor: file name} where there is one."""
    index = folder / INDEX
    listed = _read_index(index) if index.is_file() else {}
    if path.is_file() and path.name not in listed.values():
        return [path], {}
    if listed and (path.is_file() or not (folder / SINGLE).is_file()):
        files = [folder / name for name in sorted(set(listed.values()))]
        missing = [file for file in files if not file.is_file()]
        if missing:
            raise CheckpointError(f"{missing[0]}: this shard, named in {INDEX}, is missing; download it into {folder}")
        return files, listed
    if (folder / SINGLE).is_file():
        return [folder / SINGLE], {}
    raise _nothing_to_open(folder)


def _nothing_to_open(folder: Path) -> CheckpointError | UnsupportedModelError:
    suffixes = {file.suffix for file in folder.iterdir()}
    if suffixes & {".bin", ".pt", ".pth"}:
        return UnsupportedModelError(
            f"{folder}: only pickled weights (.bin, .pt), which can run code; convert the model to safetensors"
        )
    if ".gguf" in suffixes:
        return CheckpointError(f"{folder}: a folder of GGUF files; name the .gguf file to open")
    return CheckpointError(
        f"{folder}: neither {SINGLE} nor {INDEX} is in this folder; name a model folder or a .gguf file"
    )


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise CheckpointError(f"{file}: missing; a safetensors model needs its {CONFIG} beside it, download it as well")
    if file.stat().st_size > MAX_JSON:
        raise CheckpointError(f"{file}: larger than {MAX_JSON} bytes; {REMEDY}")
    return _parse_json(file, file.read_bytes())


def _parse_json(file: Path, text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text, object_pairs_hook=lambda pairs: _unique(file, pairs))
    except (ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{file}: not valid JSON ({error}); {REMEDY}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: JSON of type {type(value).__name__}, not an object; {REMEDY}")
    return value


def _unique(file: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise CheckpointError(f"{file}: {twice!r} appears twice; {REMEDY}")
    return content


def _read_index(file: Path) -> dict[str, str]:
    listed = _read_json(file).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise CheckpointError(f"{file}: key 'weight_map' is missing or empty; {REMEDY}")
    for name, shard in listed.items():
        # A shard lies in the folder; an index must not reach files elsewhere.
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise CheckpointError(f"{file}: tensor {name!r} lies in {shard!r}, not a .safetensors file name; {REMEDY}")
    return listed


def _tensors(file: Path, data: NDArray[np.uint8]) -> list[RawTensor]:
    length = int.from_bytes(data[:8].tobytes(), "little")
    if data.size < 8 or length > min(MAX_HEADER, data.size - 8):
        raise CheckpointError(
            f"{file}: a header of {length} bytes in a file of {data.size} (truncated, or no safetensors file); {REMEDY}"
        )
    header = _parse_json(file, data[8 : 8 + length].tobytes())
    header.pop("__metadata__", None)
    body = data[8 + length :]
    tensors, spans = [], []
    for name, record in header.items():
        shape, dtype, begin, end = _record(file, name, record)
        if end > body.size:
            raise CheckpointError(
                f"{file}: tensor {name!r} ends {end - body.size} bytes beyond the end of the file (truncated); {REMEDY}"
            )
        rows = math.prod(shape[:-1])
        tensors.append(RawTensor(name, file, shape, dtype, body[begin:end].reshape(*shape[:-1], (end - begin) // rows)))
        spans.append((begin, end, name))
    check_disjoint(file, spans)
    return tensors


def _record(file: Path, name: str, record: Any) -> tuple[tuple[int, ...], str, int, int]:
    """(shape, dtype, begin, end), checked against each other; a scalar gets the shape (1,)."""
    fields = record if isinstance(record, dict) else {}
    dtype, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not isinstance(dtype, str) or not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise CheckpointError(
            f"{file}: the record of tensor {name!r} lacks a sound dtype, shape or data_offsets; {REMEDY}"
        )
    begin, end = offsets
    sizes = tuple(shape) or (1,)
    count, size = math.prod(sizes), end - begin
    if dtype in DTYPE_BYTES:
        sound = size == count * DTYPE_BYTES[dtype]
    else:  # refused only when the tensor is needed
        sound = count > 0 and size % math.prod(sizes[:-1]) == 0
        dtype = f"dtype {dtype}"
    if count == 0 or size < 0 or len(sizes) > MAX_DIMENSIONS or not sound:
        raise CheckpointError(f"{file}: tensor {name!r} {sizes} {dtype} does not fit its {size} bytes; {REMEDY}")
    return sizes, dtype, begin, end


def _are_sizes(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)
