"""The model families that are supported: one file each, found by `model_type` or by the GGUF architecture name."""

from ..checkpoint.base import Checkpoint
from ..errors import CheckpointError, UnsupportedModelError
from ..spec import ModelSpec
from .base import Architecture, Source
from .config import config_biases, spec_from_config
from .llama import LLAMA
from .metadata import gguf_biases, spec_from_gguf
from .mixtral import MIXTRAL
from .olmoe import OLMOE
from .qwen2_moe import QWEN2_MOE
from .qwen3_moe import QWEN3_MOE

__all__ = ["ARCHITECTURES", "Architecture", "Source", "architecture_of", "biases_of", "spec_of"]

ARCHITECTURES = (LLAMA, MIXTRAL, QWEN2_MOE, QWEN3_MOE, OLMOE)


def architecture_of(checkpoint: Checkpoint) -> Architecture:
    """The family of a checkpoint; UnsupportedModelError where it is another one."""
    if checkpoint.source == "gguf":
        key, attribute = "general.architecture", "gguf_name"
    else:
        key, attribute = "model_type", "name"
    name = checkpoint.metadata.get(key)
    if not isinstance(name, str):
        raise CheckpointError(
            f"{checkpoint.path}: key {key!r} is missing or no text; download or convert the model again"
        )
    if checkpoint.source == "gguf" and name == LLAMA.gguf_name:
        return MIXTRAL if checkpoint.metadata.get("llama.expert_count") else LLAMA
    for architecture in ARCHITECTURES:
        if getattr(architecture, attribute) == name:
            return architecture
    known = ", ".join(dict.fromkeys(getattr(architecture, attribute) for architecture in ARCHITECTURES))
    raise UnsupportedModelError(f"{checkpoint.path}: architecture {name!r} is not supported; these are: {known}")


def spec_of(architecture: Architecture, checkpoint: Checkpoint) -> ModelSpec:
    """The model's shapes and rules. Raises CheckpointError or UnsupportedModelError, naming the key and the file."""
    read = spec_from_gguf if checkpoint.source == "gguf" else spec_from_config
    return read(architecture, checkpoint)


def biases_of(architecture: Architecture, checkpoint: Checkpoint) -> frozenset[str]:
    """The bias roles that each layer of the model has."""
    read = gguf_biases if checkpoint.source == "gguf" else config_biases
    return read(architecture, checkpoint)
