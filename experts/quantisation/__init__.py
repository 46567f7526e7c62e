"""Quantised safetensors: what config.json says of them, and their matrices joined from codes, scales and zero points.

A matrix is asked for by the name that it has in a model of floats. Modules that are stored in floats are taken as they
are, listed or not among those that were not converted.
"""

from collections.abc import Callable

from ..architectures.config import config_of
from ..checkpoint import Checkpoint, Tensor
from .awq import find_awq
from .compressed import find_compressed
from .fp8 import find_fp8
from .gptq import find_gptq
from .mxfp4 import find_mxfp4
from .parts import Find

__all__ = ["QUANTISATION", "finder"]

QUANTISATION = "quantization_config"  # the key of config.json
_METHODS: dict[str, Find] = {
    "awq": find_awq,
    "compressed-tensors": find_compressed,
    "fbgemm_fp8": find_fp8,
    "fp8": find_fp8,
    "gptq": find_gptq,
    "mxfp4": find_mxfp4,
}


def finder(checkpoint: Checkpoint) -> Callable[[str], Tensor | None]:
    """The way to look up tensors by name; it gives None for what is missing, and no value is read.

    Raises CheckpointError or UnsupportedModelError for a quantisation that is unsound or not supported, and so does a
    look-up for a matrix whose parts are.
    """
    tensors = checkpoint.tensors
    if checkpoint.source == "gguf" or checkpoint.metadata.get(QUANTISATION) is None:
        return tensors.get
    outer = config_of(checkpoint)
    method = outer.section(QUANTISATION).text("quant_method")
    if method not in _METHODS:
        raise outer.unsupported(
            QUANTISATION,
            f"has the quant_method {method!r}, which is not supported; use the original model, a GGUF of it, or one in "
            f"{', '.join(sorted(_METHODS))}",
        )
    return _METHODS[method](outer.section(QUANTISATION), tensors)
