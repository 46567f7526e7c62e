"""A model on paper: opened as far as it is there, with tensors that have a shape and a format but no data."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from .architectures import architecture_of, biases_of, spec_of
from .checkpoint import Checkpoint, RawTensor, blank_tensor, open_checkpoint, open_header
from .checkpoint.mapping import fingerprint
from .errors import CheckpointError, UnsupportedModelError
from .formats import FORMATS
from .model import Model
from .paper_formats import FLOATS, config_formats
from .roles import Shape, role_shapes
from .weights import Weights

FormatOf = Callable[[str, Shape], str]  # by role and shape


def open_outline(path: str | Path, weight_format: str | None = None) -> tuple[Model, bool]:
    """A model whose sizes are right, and whether it is the checkpoint itself. No data may be read of it if it is not.

    weight_format: a name of `formats.FORMATS` for all matrices but the routers. Raises as `open_model`.
    """
    if weight_format is not None and weight_format not in FORMATS:
        known = ", ".join(name.lower() for name in FORMATS)
        raise UnsupportedModelError(f"--format {weight_format.lower()} is not a format of weights; choose from {known}")
    checkpoint, whole = _open(path)
    if weight_format is None and (whole or checkpoint.source == "gguf"):
        architecture = architecture_of(checkpoint)
        spec = spec_of(architecture, checkpoint)
        return Model(spec, checkpoint, Weights(checkpoint, architecture, spec)), whole
    return _on_paper(checkpoint, weight_format), False


def _open(path: str | Path) -> tuple[Checkpoint, bool]:
    try:
        return open_checkpoint(path), True
    except (CheckpointError, UnsupportedModelError):
        header = open_header(path)
        if header is None:
            raise
    # The numbers of this one, which no size depends on, are not there.
    tensors = {name: tensor for name, tensor in header.tensors.items() if name != "rope_freqs.weight"}
    return replace(header, tensors=tensors), False


def _on_paper(checkpoint: Checkpoint, weight_format: str | None) -> Model:
    """The checkpoint's model with blank tensors, as if it were a GGUF file: that has one for all experts of a layer."""
    architecture = architecture_of(checkpoint)
    spec, biases = spec_of(architecture, checkpoint), biases_of(architecture, checkpoint)
    choose = config_formats(architecture, checkpoint) if weight_format is None else _all_in(weight_format)
    tensors: dict[str, RawTensor] = {}
    for role, shape in role_shapes(spec, biases).items():
        if role == "head" and _is_tied(checkpoint):
            continue
        layer, name = ("", role) if not role.startswith("layers.") else role.split(".", 2)[1:]
        stored = architecture.gguf_names[name][0].template.format(i=layer)
        form = choose(role, shape) if len(shape) > 1 else FLOATS
        tensors[stored] = blank_tensor(stored, checkpoint.path, shape, form)
    paper = Checkpoint(checkpoint.path, "gguf", {}, tensors, fingerprint(list(tensors.values()), []))
    return Model(spec, paper, Weights(paper, architecture, spec))


def _is_tied(checkpoint: Checkpoint) -> bool:
    if checkpoint.source == "gguf":
        return "output.weight" not in checkpoint.tensors
    return checkpoint.metadata.get("tie_word_embeddings") is True


def _all_in(name: str) -> FormatOf:
    """Every matrix in a format but routers and gates, which converters leave in floats."""

    def choose(role: str, shape: Shape) -> str:
        if role.endswith(("router", "shared_gate")):
            return FLOATS
        # As converters do with rows that are not whole blocks.
        return next(other for other in (name, "Q8_0", "F16") if shape[-1] % FORMATS[other].block == 0)

    return choose
