"""The formats that a model's matrices will have by its config.json, before any of them is there."""

import re
from collections.abc import Callable, Sequence

from .architectures import Architecture
from .architectures.config import config_of
from .checkpoint import Checkpoint
from .fields import Fields
from .quantisation import QUANTISATION
from .roles import Shape

FLOATS = "F32"
_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_KEPT = ("embed", "head", "router", "shared_gate")  # what quantisers leave in floats
_NAMED = "name it by --format"


def config_formats(architecture: Architecture, checkpoint: Checkpoint) -> Callable[[str, Shape], str]:
    """The format of a matrix by its role and shape.

    Raises CheckpointError or UnsupportedModelError where the config does not say it.
    """
    config = config_of(checkpoint)
    plain = _plain(config)
    if not config.has(QUANTISATION):
        return lambda role, shape: plain
    section = config.section(QUANTISATION)
    method = section.text("quant_method")
    quantised, kept = _quantised(config, section, method, plain), _kept_modules(section)

    def choose(role: str, shape: Shape) -> str:
        name = role.split(".", 2)[-1]
        if name in _KEPT or (method == "mxfp4" and not name.startswith("experts.")):
            return plain
        layer = role.split(".")[1]
        module = architecture.config_names[name][0].template.format(i=layer, e=0).removesuffix(".weight")
        return plain if any(_names(entry, module) for entry in kept) else quantised

    return choose


def _plain(config: Fields) -> str:
    key = "dtype" if config.has("dtype") else "torch_dtype"
    if not config.has(key):
        raise config.unsupported("torch_dtype", f"is missing, so the format of the weights is not known; {_NAMED}")
    dtype = config.text(key).removeprefix("torch.")
    if dtype not in _DTYPES:
        raise config.unsupported(key, f"is {dtype!r}, only {', '.join(_DTYPES)} are read; {_NAMED}")
    return _DTYPES[dtype]


def _quantised(config: Fields, section: Fields, method: str, plain: str) -> str:
    bfloat = "_BF16" if plain == "BF16" else ""
    if method in ("fp8", "fbgemm_fp8"):
        return "FP8"
    if method == "mxfp4":
        return "MXFP4"
    if method == "awq":
        return "INT4_ZP"
    if method == "gptq":
        bits = section.integer("bits", 1, 32)
        return _integers(section, "bits", bits, section.boolean("sym", True)) + bfloat
    if method == "compressed-tensors":
        groups = section.mapping("config_groups")
        if len(groups) != 1:
            raise section.unsupported("config_groups", f"has {len(groups)} groups and not one; {_NAMED}")
        weights = section.section("config_groups").section(next(iter(groups))).section("weights")
        bits = weights.integer("num_bits", 1, 64)
        if weights.text("type", "int") == "float" and bits == 8:
            return "FP8"
        return _integers(weights, "num_bits", bits, weights.boolean("symmetric", True)) + bfloat
    raise config.unsupported(QUANTISATION, f"has the quant_method {method!r}, which is not supported")


def _integers(section: Fields, key: str, bits: int, symmetric: bool) -> str:
    name = f"INT{bits}{'' if symmetric else '_ZP'}"
    if name not in ("INT4", "INT4_ZP", "INT8"):
        raise section.unsupported(key, f"is {bits}{'' if symmetric else ' with zero points'}, which is not supported")
    return name


def _kept_modules(section: Fields) -> Sequence[str]:
    for key in ("modules_to_not_convert", "ignored_layers", "ignore"):
        entries = section.get(key)
        if entries is not None:
            if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
                raise section.broken(key, f"is {entries!r}, not a list of names")
            for entry in entries:
                _check_pattern(section, key, entry)
            return entries
    return ()


def _check_pattern(section: Fields, key: str, entry: str) -> None:
    try:
        re.compile(entry.removeprefix("re:") if entry.startswith("re:") else "")
    except re.error as error:
        raise section.broken(key, f"holds {entry!r}, which is no pattern ({error})") from error


def _names(entry: str, module: str) -> bool:
    """Whether an entry names the module, one that it lies in, or is a pattern of it."""
    if entry.startswith("re:"):
        return re.match(entry.removeprefix("re:"), module) is not None
    return f".{entry}." in f".{module}."
