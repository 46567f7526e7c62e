"""Sparse upcycling: a dense llama GGUF becomes one in Mixtral's format; each expert is the dense feed-forward block."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from .checkpoint.base import Checkpoint

FEED_FORWARD = re.compile(r"blk\.(?P<layer>\d+)\.ffn_(?P<part>gate|up|down)\.weight")
# The writer sets the first itself; the second describes the old file's layout.
NOT_COPIED = ("general.architecture", "general.alignment")


@dataclass(frozen=True, slots=True)
class _Output:
    """A tensor to write: `data`, uint8 [..., bytes per row], or `copies` of it along a new slowest axis."""

    name: str
    format: str
    data: NDArray[np.uint8]
    copies: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.copies, *self.data.shape) if self.copies else self.data.shape

    @property
    def nbytes(self) -> int:
        return self.data.nbytes * max(self.copies, 1)


@dataclass(frozen=True, slots=True)
class Upcycling:
    """The dense checkpoint (one GGUF file of a llama), one router [E, H] a layer, and what to call the result."""

    dense: Checkpoint
    routers: Sequence[NDArray[np.float32]]
    top_k: int
    name: str
    description: str

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(output.nbytes for output in self._outputs())

    def write(self, target: Path, progress: Callable[[int, int], None]) -> None:
        """Write the GGUF; other tensors and metadata are copied bit by bit. `progress(done, total)` counts tensors."""
        outputs = list(self._outputs())
        writer = gguf.GGUFWriter(target, "llama")
        try:
            self._add_metadata(writer)
            for output in outputs:
                kind = gguf.GGMLQuantizationType[output.format]
                writer.add_tensor_info(output.name, output.shape, np.dtype(np.uint8), output.nbytes, kind)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for done, output in enumerate(outputs):
                progress(done, len(outputs))
                writer.write_tensor_data(np.repeat(output.data[None], max(output.copies, 1), axis=0))
            writer.flush()
        finally:
            writer.close()
        progress(len(outputs), len(outputs))

    def _outputs(self) -> Iterator[_Output]:
        for tensor in self.dense.tensors.values():
            match = FEED_FORWARD.fullmatch(tensor.name)
            if match is None:
                yield _Output(tensor.name, tensor.format, tensor.data)
                continue
            layer, part = int(match["layer"]), match["part"]
            router = self.routers[layer]
            if part == "gate":
                yield _Output(f"blk.{layer}.ffn_gate_inp.weight", "F32", router.view(np.uint8))
            yield _Output(f"blk.{layer}.ffn_{part}_exps.weight", tensor.format, tensor.data, len(router))

    def _add_metadata(self, writer: gguf.GGUFWriter) -> None:
        for field in gguf.GGUFReader(self.dense.path).fields.values():
            if field.name in NOT_COPIED or field.name.startswith("GGUF."):
                continue
            kind, element = field.types[0], field.types[-1]
            value = _values(field)
            is_array = kind == gguf.GGUFValueType.ARRAY
            writer.add_key_value(field.name, value if is_array else value[0], kind, element if is_array else None)
        for key, text in (("general.name", self.name), ("general.description", self.description)):
            writer.kv_data[0].pop(key, None)  # the writer warns of a key that is set twice
            writer.add_string(key, text)
        writer.add_expert_count(len(self.routers[0]))
        writer.add_expert_used_count(self.top_k)


def _values(field: gguf.ReaderField) -> list[Any]:
    """The field's elements; strings as bytes, since a vocabulary may hold what is no UTF-8."""
    parts = [field.parts[index] for index in field.data]
    if field.types[-1] == gguf.GGUFValueType.STRING:
        return [part.tobytes() for part in parts]
    return [part[0] for part in parts]
