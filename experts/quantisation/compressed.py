"""compressed-tensors: integers packed into words, 8-bit integers, and 8-bit floats.

Packed: MODULE.weight_packed int32 [rows, columns * bits / 32], consecutive columns from the lowest bits, of codes that
carry half of their range; .weight_scale [rows, groups]; where it is not symmetric .weight_zero_point int32 [rows * bits
/ 32, groups], rows packed likewise; .weight_g_idx [columns] where columns are not grouped as they come.
Not packed: MODULE.weight int8 with .weight_scale [rows, groups], or E4M3 as in `fp8`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from ..checkpoint import Plane, RawTensor, Tensor
from ..fields import Fields
from .fp8 import Block, block_of, is_fp8, join_fp8
from .integers import SCALES, Grouping, group_size, join_integers
from .parts import Parts, Tensors, values_of

_FORMATS = ("pack-quantized", "float-quantized", "int-quantized", "naive-quantized", "mixed-precision", "dense")


@dataclass(frozen=True, slots=True)
class _Scheme:
    """How the modules are quantised that `targets` name; None where it is not a kind of grouping or block."""

    targets: tuple[str, ...]
    grouping: Grouping | None
    block: Block | None

    def names(self, module: str) -> bool:
        """Whether a target is the module's name, or a pattern of it."""
        patterns = (target.removeprefix("re:") for target in self.targets if target.startswith("re:"))
        return module in self.targets or any(re.match(pattern, module) for pattern in patterns)


def find_compressed(config: Fields, tensors: Tensors) -> Callable[[str], Tensor | None]:
    """See `quantisation.finder`."""
    _check_format(config)
    if config.section("sparsity_config").text("format", "dense") != "dense":
        raise config.unsupported("sparsity_config", "is not supported; use the original model")
    if config.section("transform_config").mapping("config_groups"):
        raise config.unsupported("transform_config", "is not supported; use the original model")
    groups = config.section("config_groups")
    schemes = [_scheme(groups.section(key)) for key in config.mapping("config_groups")]

    def find(name: str) -> Tensor | None:
        module = name.removesuffix(".weight")
        codes = tensors.get(f"{module}.weight_packed") or tensors.get(name)
        if codes is None or (codes.name == name and not is_fp8(codes) and codes.format != "I8"):
            return codes
        parts = Parts(tensors, codes)
        scheme = _scheme_of(module, schemes, parts)
        if is_fp8(codes):
            return join_fp8(parts, scheme.block)
        if scheme.grouping is None:
            raise parts.broken("holds integers, but by its config it is quantised to floats")
        return _join(name, module, parts, scheme.grouping)

    return find


def _check_format(config: Fields) -> None:
    kind = config.text("format", "dense")
    if kind not in _FORMATS:
        raise config.unsupported(
            "format", f"is {kind!r}, only {', '.join(_FORMATS)} are supported; use the original model"
        )


def _scheme(config: Fields) -> _Scheme:
    _check_format(config)
    targets = config.get("targets")
    if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
        raise config.broken("targets", f"is {targets!r}, not a list of names")
    for target in targets:
        _check_pattern(config, target)
    weights = config.section("weights")
    bits, kind, strategy = (
        weights.integer("num_bits", 1, 64),
        weights.text("type", "int"),
        weights.text("strategy", "tensor"),
    )
    if (kind, bits) not in (("int", 4), ("int", 8), ("float", 8)):
        raise weights.unsupported(
            "num_bits", f"is {bits} of type {kind!r}, which is not supported; use the original model"
        )
    if kind == "float":
        if strategy not in ("tensor", "channel", "block"):
            raise weights.unsupported("strategy", f"is {strategy!r}, which is not supported for floats")
        return _Scheme(tuple(targets), None, block_of(weights, "block_structure") if strategy == "block" else None)
    if strategy not in ("group", "channel", "tensor"):
        raise weights.unsupported("strategy", f"is {strategy!r}, which is not supported for integers")
    size = group_size(weights) if strategy == "group" else 0
    return _Scheme(tuple(targets), Grouping(bits, size, not weights.boolean("symmetric", True)), None)


def _check_pattern(config: Fields, target: str) -> None:
    try:
        re.compile(target.removeprefix("re:") if target.startswith("re:") else "")
    except re.error as error:
        raise config.broken("targets", f"holds {target!r}, which is no pattern ({error})") from error


def _scheme_of(module: str, schemes: list[_Scheme], parts: Parts) -> _Scheme:
    """The scheme that names the module, else the one for all linear layers."""
    named = [scheme for scheme in schemes if scheme.names(module)]
    for scheme in named or [scheme for scheme in schemes if "Linear" in scheme.targets]:
        return scheme
    raise parts.broken("is quantised, but no group of config_groups is for it")


def _join(name: str, module: str, parts: Parts, grouping: Grouping) -> Tensor:
    packed = parts.codes.name != name
    rows, words = parts.matrix("I32" if packed else "I8")
    if not packed and (grouping.bits != 8 or grouping.zeros):
        raise parts.unsupported("has other numbers in its bytes than 8-bit integers around 0")
    in_word = grouping.in_word
    width = words * in_word if packed else words
    groups = grouping.count(width)
    scale = parts.take(f"{module}.weight_scale", SCALES, (rows, groups), *(((1,), (rows,)) if groups == 1 else ()))
    planes = [Plane(values_of(parts.codes)), _scale_plane(scale, rows, groups)]
    if grouping.zeros:
        zeros = parts.take(f"{module}.weight_zero_point", ("I32",), (-(-rows // in_word), groups))
        planes.append(Plane(values_of(zeros), in_word, grouping.word_places(), grouping.bits))
    index = f"{module}.weight_g_idx"
    order = parts.take(index, ("I32", "I64"), (width,)) if index in parts.tensors else None
    return join_integers(name, parts, (rows, width), grouping, tuple(planes), scale, order=order)


def _scale_plane(scale: RawTensor, rows: int, groups: int) -> Plane:
    values = values_of(scale).reshape(-1, groups)
    return Plane(values, rows // len(values))
