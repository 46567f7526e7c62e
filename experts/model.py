"""A model opened for reading: what it is, and where its weights are."""

from dataclasses import dataclass
from pathlib import Path

from .architectures import architecture_of, spec_of
from .checkpoint import Checkpoint, open_checkpoint
from .spec import ModelSpec
from .weights import Weights


@dataclass(frozen=True, slots=True)
class Model:
    """A checked model. Nothing of its weights has been read yet."""

    spec: ModelSpec
    checkpoint: Checkpoint
    weights: Weights


def open_model(path: str | Path) -> Model:
    """Open a .gguf file or a safetensors folder and check all of it but the weights' values.

    Raises CheckpointError for a broken model, UnsupportedModelError for one that is not implemented; both name the
    file, the tensor or key, and the remedy.
    """
    checkpoint = open_checkpoint(path)
    architecture = architecture_of(checkpoint)
    spec = spec_of(architecture, checkpoint)
    return Model(spec, checkpoint, Weights(checkpoint, architecture, spec))
