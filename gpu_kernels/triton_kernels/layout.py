"""What a kernel is compiled for: a kind of packed weights as constants."""

from typing import NamedTuple

from ..tensors import KindLayout

FLOATS = ("f32", "f16", "bf16", "f8")


class Layout(NamedTuple):
    """form: "codes", or the name of a kind without; the rest is of codes, see `CodeLayout`.

    table: of 16 signed bytes, four in an integer, or nothing; parts: "none" where scales have one level.
    """

    form: str
    unit_bytes: int
    spans: int
    low: int = 0
    high: int = 0
    offset: int = 0
    columns: int = 32
    minima: bool = False
    zeros: bool = False
    bfloat: bool = False
    parts: str = "none"
    minima_at: int = 0
    parts_at: int = 0
    high_at: int = 0
    low_at: int = 0
    plane_bytes: int = 0
    has_table: bool = False
    table: tuple[int, ...] = ()


def layout_of(name: str, kind: KindLayout) -> Layout:
    """Raises ValueError for a kind without codes that no kernel reads."""
    codes = kind.codes
    if codes is None:
        if name not in FLOATS:
            raise ValueError(f"no Triton kernel reads weights of kind {name!r}: those with floats are {FLOATS}")
        return Layout(name, kind.unit_bytes, kind.spans)
    words = [
        sum((entry & 255) << 8 * i for i, entry in enumerate(codes.table[at : at + 4]))
        for at in range(0, len(codes.table), 4)
    ]
    return Layout(
        "codes", kind.unit_bytes, kind.spans, codes.low, codes.high, codes.offset, codes.columns, codes.minima,
        codes.zeros, codes.bfloat, codes.parts or "none", codes.minima_at, codes.parts_at, codes.high_at, codes.low_at,
        codes.plane_bytes, bool(codes.table), tuple(word - (word >> 31 << 32) for word in words),
    )  # fmt: skip
