"""GPTQ: MODULE.qweight, .scales, .qzeros and .g_idx.

qweight int32 [columns * bits / 32, rows]: consecutive columns in a word, the first in the lowest bits.
scales [groups, rows]. qzeros int32 [groups, rows * bits / 32]: rows packed likewise, one less than the zero points but
in version 2. g_idx int32 [columns]: the group of each column.
"""

from collections.abc import Callable

from ..checkpoint import Plane, Tensor
from ..fields import Fields
from .integers import SCALES, Grouping, check_order, group_size, join_integers
from .parts import Parts, Tensors, values_of

_LACKING = {"gptq": 1, "gptq_v2": 0}  # checkpoint_format -> what is to be added to the zero points


def find_gptq(config: Fields, tensors: Tensors) -> Callable[[str], Tensor | None]:
    """See `quantisation.finder`."""
    bits = config.integer("bits", 1, 32)
    if bits not in (4, 8):
        raise config.unsupported(
            "bits", f"is {bits}, only 4 and 8 are supported; use the original model or a GGUF of it"
        )
    key = next((key for key in ("checkpoint_format", "format") if config.has(key)), "checkpoint_format")
    version = config.text(key, "gptq")
    if version not in _LACKING:
        raise config.unsupported(key, f"is {version!r}, only {' and '.join(_LACKING)} are supported; convert the model")
    if any(not pattern.startswith("-:") for pattern in config.mapping("dynamic")):
        raise config.unsupported("dynamic", "quantises some modules in other ways, which is not supported")
    grouping = Grouping(bits, group_size(config), not config.boolean("sym", True))
    ordered = config.boolean("desc_act", False)

    def find(name: str) -> Tensor | None:
        module = name.removesuffix(".weight")
        codes = tensors.get(f"{module}.qweight")
        if name in tensors or codes is None:
            return tensors.get(name)
        return _join(name, module, Parts(tensors, codes), grouping, _LACKING[version], ordered)

    return find


def _join(name: str, module: str, parts: Parts, grouping: Grouping, lacking: int, ordered: bool) -> Tensor:
    words, rows = parts.matrix("I32")
    in_word = grouping.in_word
    width = words * in_word
    groups = grouping.count(width)
    scales = parts.take(f"{module}.scales", SCALES, (groups, rows))
    zeros = parts.take(f"{module}.qzeros", ("I32",), (groups, -(-rows // in_word)))
    order = parts.take(f"{module}.g_idx", ("I32",), (width,)) if f"{module}.g_idx" in parts.tensors else None
    if ordered and order is not None:  # read so early only where it is likely to be refused
        check_order(parts, grouping, values_of(order))
    planes = (
        Plane(values_of(parts.codes).T),
        Plane(values_of(scales).T),
        Plane(values_of(zeros).T, in_word, grouping.word_places(), grouping.bits),
    )
    return join_integers(name, parts, (rows, width), grouping, planes, scales, more=lacking, order=order)
