"""GGUF checkpoints, versions 2 and 3, in one file or split into several."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from ..errors import CheckpointError
from .base import Checkpoint, RawTensor, blank_tensor
from .gguf_header import Header, TensorRecord, read_header
from .mapping import REMEDY, check_disjoint, fingerprint, map_file

SPLIT_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20


def open_gguf(path: Path, *, header_only: bool = False) -> Checkpoint:
    """Open a GGUF file; for one part of a split model, all its parts.

    header_only: nothing behind the headers need be there; the tensors have no data, and the fingerprint is of names,
    shapes and formats alone.

    Raises CheckpointError for a broken or missing file, UnsupportedModelError for another GGUF version.
    """
    metadata: dict[str, Any] = {}
    tensors: dict[str, RawTensor] = {}
    sizes = []
    for number, file in enumerate(_parts(path)):
        data = map_file(file)
        header = read_header(file, data)
        if number == 0:
            metadata = header.metadata
        sizes.append(0 if header_only else data.size)
        for tensor in _tensors(file, data, header, header_only):
            if tensor.name in tensors:
                raise CheckpointError(
                    f"{file}: tensor {tensor.name!r} is also in {tensors[tensor.name].file}; {REMEDY}"
                )
            tensors[tensor.name] = tensor
    _check_split(path, metadata, len(sizes), len(tensors))
    return Checkpoint(path, "gguf", metadata, tensors, fingerprint(list(tensors.values()), sizes))


def _parts(path: Path) -> list[Path]:
    match = SPLIT_NAME.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    parts = [path.with_name(f"{match['stem']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise CheckpointError(
            f"{path}: part {missing[0]} is missing beside it; download all {count} parts into one folder"
        )
    return parts


def _check_split(path: Path, metadata: dict[str, Any], num_parts: int, num_tensors: int) -> None:
    count = metadata.get("split.count") or 1
    if count != num_parts:
        raise CheckpointError(
            f"{path}: key 'split.count' says {count} parts but {num_parts} were found; keep all parts in one folder, "
            "named NAME-00001-of-0000N.gguf and so on"
        )
    expected = metadata.get("split.tensors.count", num_tensors)
    if expected != num_tensors:
        raise CheckpointError(f"{path}: {num_tensors} tensors found, 'split.tensors.count' says {expected}; {REMEDY}")


def _tensors(file: Path, data: NDArray[np.uint8], header: Header, header_only: bool) -> list[RawTensor]:
    alignment = header.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise CheckpointError(f"{file}: key 'general.alignment' is {alignment!r}, not a power of two; {REMEDY}")
    start = -(-header.end // alignment) * alignment
    tensors, spans = [], []
    for record in header.tensors:
        if record.offset % alignment:
            raise CheckpointError(f"{file}: tensor {record.name!r} is not aligned to {alignment} bytes; {REMEDY}")
        tensor, size = _tensor(file, None if header_only else data[start:], record)
        tensors.append(tensor)
        spans.append((record.offset, record.offset + size, record.name))
    check_disjoint(file, spans)
    return tensors


def _tensor(file: Path, data: NDArray[np.uint8] | None, record: TensorRecord) -> tuple[RawTensor, int]:
    """The tensor and its size in bytes. A format that the library does not know has no data: its size is unknown."""
    try:
        kind = GGMLQuantizationType(record.format_id)
    except ValueError:
        return blank_tensor(record.name, file, record.shape, f"type {record.format_id}"), 0
    block, block_bytes = GGML_QUANT_SIZES[kind]
    columns = record.shape[-1]
    if columns % block:
        raise CheckpointError(
            f"{file}: tensor {record.name!r} has rows of {columns}, not whole {kind.name} blocks of {block}; {REMEDY}"
        )
    row_bytes = columns // block * block_bytes
    size = math.prod(record.shape[:-1]) * row_bytes
    if data is None:
        return blank_tensor(record.name, file, record.shape, kind.name), size
    if record.offset + size > data.size:
        raise CheckpointError(
            f"{file}: tensor {record.name!r} {record.shape} {kind.name} ends {record.offset + size - data.size} bytes "
            f"beyond the end of the file (truncated, or a corrupt size); {REMEDY}"
        )
    rows = data[record.offset : record.offset + size].reshape(*record.shape[:-1], row_bytes)
    return RawTensor(record.name, file, record.shape, kind.name, rows), size
