"""A model's tensors by canonical role, whatever the container calls them and however it stores the experts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .architectures import Architecture, Source, biases_of
from .checkpoint import Checkpoint, RawTensor, Tensor, release
from .errors import CheckpointError, UnsupportedModelError
from .formats import Floats, dequantise, format_of
from .quantisation import finder
from .roles import Shape, role_shapes
from .spec import ModelSpec

ROTATED = {"q", "k", "q_bias", "k_bias"}  # roles whose rows rope turns


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a role was found: one tensor, or one for each expert; of each the rows of `source.part`."""

    source: Source
    tensors: tuple[Tensor, ...]


class Weights:
    """The tensors of a model, all found and their shapes and formats checked before any data is read.

    Raises CheckpointError for a missing or misshapen tensor, UnsupportedModelError for a format that is not supported.
    """

    def __init__(self, checkpoint: Checkpoint, architecture: Architecture, spec: ModelSpec) -> None:
        self._checkpoint = checkpoint
        self._find_tensor = finder(checkpoint)
        self._names = architecture.gguf_names if checkpoint.source == "gguf" else architecture.config_names
        self._unturn = checkpoint.source == "gguf" and architecture.gguf_adjacent_rope
        self._spec = spec
        self._shapes = role_shapes(spec, biases_of(architecture, checkpoint))
        self._places = {role: self._find(role, shape) for role, shape in self._shapes.items()}

    @property
    def roles(self) -> Iterable[str]:
        """All roles that the model has, in the order of its layers."""
        return self._places.keys()

    def has(self, role: str) -> bool:
        return role in self._places

    def shape(self, role: str) -> Shape:
        """The logical shape; (experts, rows, columns) for a bank."""
        return self._shapes[role]

    @property
    def head_is_embedding(self) -> bool:
        """Whether the head and the embedding are one tensor."""
        return self._places["head"].tensors[0].name == self._places["embed"].tensors[0].name

    @property
    def stored_tensors(self) -> tuple[Tensor, ...]:
        """The tensors of the checkpoint that the model uses, each once; a file may hold others."""
        return tuple({t.name: t for place in self._places.values() for t in place.tensors}.values())

    def tensor(self, role: str) -> Tensor:
        """The tensor in its own format: a view on the file, but for Q and K rows that had to be put in order.

        Raises ValueError for a bank whose experts lie in separate tensors: those have only `expert`.
        """
        tensor = self.stored(role)
        last = role.rsplit(".", 1)[-1]
        if self._unturn and last in ROTATED and isinstance(tensor, RawTensor):
            return _half_split(tensor, self._spec.num_heads if last[0] == "q" else self._spec.num_kv_heads)
        return tensor

    def stored(self, role: str) -> Tensor:
        """As `tensor` with its rows as they lie in the file: always a view, nothing is read."""
        place = self._places[role]
        if len(place.tensors) > 1:
            raise ValueError(f"{role} has a tensor for each expert; ask for them one by one")
        tensor, source, shape = place.tensors[0], place.source, self._shapes[role]
        if source.parts > 1:
            tensor = tensor.part(source.part, source.parts)
        if not isinstance(tensor, RawTensor):
            return tensor
        return replace(tensor, shape=shape, data=tensor.data.reshape(*shape[:-1], tensor.data.shape[-1]))

    def expert(self, role: str, expert: int) -> Tensor:
        """One expert of a bank, shape (rows, columns)."""
        place = self._places[role]
        if place.source.per_expert:
            return place.tensors[expert]
        return self.stored(role).expert(expert)

    def tensors_of_experts(self, role: str) -> Sequence[Tensor]:
        """For each expert of a bank the tensor that it lies in: one of its own, or that of all of them."""
        place = self._places[role]
        return place.tensors if place.source.per_expert else [self.stored(role)] * self._shapes[role][0]

    def dense(self, role: str) -> Floats:
        """The whole tensor as float32 in its logical shape."""
        if self._places[role].source.per_expert:
            return np.stack([self.dense_expert(role, expert) for expert in range(self._shapes[role][0])])
        return dequantise(self.tensor(role))

    def dense_expert(self, role: str, expert: int) -> Floats:
        """One expert of a bank as float32, shape (rows, columns)."""
        return dequantise(self.expert(role, expert))

    def _find(self, role: str, shape: Shape) -> _Place:
        sources, layer = self._sources(role)
        for source in sources:
            if self._find_tensor(source.template.format(i=layer, e=0)) is not None:
                return self._check(source, layer, role, shape)
        if role == "head" and self._head_is_tied():
            return self._find("embed", shape)
        raise self._missing(sources[0].template.format(i=layer, e=0), role, shape)

    def _sources(self, role: str) -> tuple[tuple[Source, ...], str]:
        if role.startswith("layers."):
            _, layer, name = role.split(".", 2)
            return self._names[name], layer
        if role == "head" and self._checkpoint.source == "safetensors" and self._head_is_tied():
            return (), ""  # a stored head would be a stale copy
        return self._names[role], ""

    def _head_is_tied(self) -> bool:
        """A GGUF file leaves a tied head out; a config.json says it."""
        return self._checkpoint.source == "gguf" or self._checkpoint.metadata.get("tie_word_embeddings") is True

    def _check(self, source: Source, layer: str, role: str, shape: Shape) -> _Place:
        stored = shape[1:] if source.per_expert else shape
        stored = (*stored[:-2], stored[-2] * source.parts, stored[-1]) if source.parts > 1 else stored
        tensors = []
        for expert in range(shape[0] if source.per_expert else 1):
            name = source.template.format(i=layer, e=expert)
            tensor = self._find_tensor(name)
            if tensor is None:
                raise self._missing(name, role, stored)
            # Some containers flatten the single row of a gate.
            if tensor.shape != stored and not (stored[0] == 1 and tensor.shape == stored[1:]):
                raise CheckpointError(
                    f"{tensor.file}: tensor {name!r} has the shape {tensor.shape}, {stored} expected from the model's "
                    "sizes; the file does not fit its metadata, download or convert the model again"
                )
            format_of(tensor)
            self._refuse_scaled(tensor)
            tensors.append(tensor)
        return _Place(source, tuple(tensors))

    def _refuse_scaled(self, tensor: Tensor) -> None:
        """Some converters put a factor of the whole tensor beside it."""
        factor = tensor.name.removesuffix("weight") + "scale"
        if self._checkpoint.source == "gguf" and factor in self._checkpoint.tensors:
            raise UnsupportedModelError(
                f"{tensor.file}: tensor {tensor.name!r} is scaled by {factor!r}, which is not supported; "
                "use a file that was converted to another format"
            )

    def _missing(self, name: str, role: str, shape: Shape) -> CheckpointError:
        return CheckpointError(
            f"{self._checkpoint.path}: tensor {name!r} of shape {shape} ({role}) is missing; "
            "the file is incomplete, download or convert the model again"
        )


def _half_split(tensor: RawTensor, num_heads: int) -> RawTensor:
    """Rows from adjacent-pair order (0, 1 turn together) to half-split order (0 turns with head_dim / 2)."""
    rows = np.arange(tensor.shape[0]).reshape(num_heads, -1, 2).swapaxes(1, 2).reshape(-1)
    # A vector's rows are its elements.
    data = tensor.data.reshape(tensor.shape[0], -1)[rows].reshape(tensor.data.shape)
    release(tensor.data)  # the copy stands for it from here on
    return replace(tensor, data=data)
