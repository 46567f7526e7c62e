"""AWQ in its "gemm" version: MODULE.qweight, .scales and .qzeros.

qweight int32 [columns, rows / 8]: eight consecutive rows in a word, in the order 0 2 4 6 1 3 5 7 from the lowest bits.
qzeros int32 [groups, rows / 8] likewise. scales [groups, rows].
"""

from collections.abc import Callable

from ..checkpoint import Plane, Tensor
from ..fields import Fields
from .integers import SCALES, Grouping, group_size, join_integers
from .parts import Parts, Tensors, values_of

_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # in a word, by row


def find_awq(config: Fields, tensors: Tensors) -> Callable[[str], Tensor | None]:
    """See `quantisation.finder`."""
    bits = config.integer("bits", 1, 32)
    if bits != 4:
        raise config.unsupported("bits", f"is {bits}, only 4 is supported; use the original model or a GGUF of it")
    key = next((key for key in ("version", "format") if config.has(key)), "version")
    version = config.text(key, "gemm")
    if version.lower() != "gemm":
        raise config.unsupported(key, f"is {version!r}, only 'gemm' is supported; quantise the model in that version")
    if not config.boolean("zero_point", True):
        raise config.unsupported("zero_point", "is false, which is not supported; quantise the model with zero points")
    grouping = Grouping(bits, group_size(config), zeros=True)

    def find(name: str) -> Tensor | None:
        module = name.removesuffix(".weight")
        codes = tensors.get(f"{module}.qweight")
        if name in tensors or codes is None:
            return tensors.get(name)
        return _join(name, module, Parts(tensors, codes), grouping)

    return find


def _join(name: str, module: str, parts: Parts, grouping: Grouping) -> Tensor:
    width, words = parts.matrix("I32")
    in_word, places = grouping.in_word, grouping.word_places(_PLACES)
    groups, rows = grouping.count(width), words * in_word
    scales = parts.take(f"{module}.scales", SCALES, (groups, rows))
    zeros = parts.take(f"{module}.qzeros", ("I32",), (groups, words))
    planes = (
        Plane(values_of(parts.codes).T, in_word, places, grouping.bits),
        Plane(values_of(scales).T),
        Plane(values_of(zeros).T, in_word, places, grouping.bits),
    )
    return join_integers(name, parts, (rows, width), grouping, planes, scales)
