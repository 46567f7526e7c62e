"""Sizes of the packed layouts that kernels share.

Weights ("T16"): tiles of 16 output rows; along the input axis a tile is a run of spans of 64 columns, each whole
cache lines. Tiles come in pairs: rows are padded with zeros to 32.

kind  span bytes  content
f32        4096   64 columns x 16 rows float32
f16        2048   64 columns x 16 rows float16
bf16       2048   32 pairs of columns x 16 rows x 2 bfloat16
f8         1088   float32 scales[16], then 64 columns x 16 rows of 8-bit floats (E4M3), two columns side by side
q8         1088   8-bit codes
q8b        1088   8-bit codes, bfloat16 scales
q4          576   4-bit codes
q4b         576   4-bit codes, bfloat16 scales
q4m         640   4-bit codes and minima
q4z         640   4-bit codes and zero points
q4zb        640   4-bit codes and zero points, bfloat16 scales
q5          704   5-bit codes
q5m         768   5-bit codes and minima
q6          896   6-bit codes, a scale for 16 columns
q2          320   2-bit codes
q2m         512   2-bit codes and minima, a scale and a minimum for 16 columns
q3          512   3-bit codes, a scale for 16 columns
iq4         576   4-bit codes of the table IQ4
mx4         576   4-bit codes of the table E2M1, bfloat16 scales: any power of two
nv4         640   4-bit codes of the table E2M1, a scale for 16 columns

A span of codes: float16 scales[16] for each 32 (or 16) columns, minima likewise, the high plane, the low plane. A zero
point stands where a minimum would, negated and in units of its scale, so that no product of the two is rounded. A plane
holds n bits of every code as n vectors of 64 bytes (16 rows x 4 columns) for each group of 32 columns, which are 8
such blocks of 4 columns: its first vector blocks 0 .. 8 / n - 1, the first in the lowest bits, and so on. The low plane
holds 2, 4 or 8 bits of a code, the high plane the 1 or 2 bits above them. (The high plane is read early: behind
the low one it broke up the stream of lines, and one token ran at 23 instead of 31 GB/s.)

Activations: per token one record. Plain: float32[columns]. "bf16": bfloat16[columns]. Quantised ("q8"): int8 codes
[columns], float32 scales [columns / 64], then sums of codes as int32 [columns / 32] and [columns / 16], times the
factors SUMS: so they stand ready for the offsets of q4 and q6. Columns are padded with zeros to whole spans.
"""

from dataclasses import dataclass
from typing import Literal

ROWS, GROUP, SPAN = 16, 32, 64
QUERY_BLOCK = 8  # most tokens of one sequence in a query block of the attention
KV_BLOCK = 16  # positions in a block of the KV cache
SUMS = {32: -8, 16: -32}  # by the columns of a sum, what a record multiplies it by
SEGMENT = 1024  # positions of a context that attention adds up by themselves

Record = Literal["plain", "bf16", "q8"]
RECORDS: tuple[Record, ...] = ("plain", "bf16", "q8")

E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # 4-bit floats, doubled
E4M3 = tuple(  # 8-bit floats; 0x7F and 0xFF are no numbers
    (1 - 2 * (code >> 7)) * ((code & 7) + (8 if code >> 3 & 15 else 0)) * 2.0 ** (max(code >> 3 & 15, 1) - 10)
    for code in range(256)
)
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


@dataclass(frozen=True, slots=True)
class Codes:
    """How a kind stores integers: weight = scale * (code - offset), or scale * table[code], plus any minimum.

    low, high: bits of a code in each plane; columns: how many share a scale (32 or 16); bfloat: scales are bfloat16.
    zeros: minima are in units of the scales, and in their type.
    offset: a power of two or 0; of a table, what makes its entries positive; 128 says that they fit into signed bytes
    as they are.
    """

    low: int
    high: int = 0
    offset: int = 0
    columns: int = GROUP
    minima: bool = False
    zeros: bool = False
    table: tuple[int, ...] = ()
    bfloat: bool = False

    @property
    def minima_at(self) -> int:
        """Where in a span the minima lie: behind the scales."""
        return SPAN // self.columns * 2 * ROWS

    @property
    def high_at(self) -> int:
        return self.minima_at * (2 if self.minima else 1)

    @property
    def low_at(self) -> int:
        return self.high_at + SPAN * ROWS * self.high // 8

    @property
    def span_bytes(self) -> int:
        return self.low_at + SPAN * ROWS * self.low // 8

    @property
    def unsigned(self) -> tuple[int, ...]:
        """By code, the weight in units of its scale, plus `offset`: all fit into unsigned bytes."""
        return tuple(entry + self.offset for entry in self.table) or tuple(range(2 ** (self.low + self.high)))


@dataclass(frozen=True, slots=True)
class Kind:
    """A packed weight kind: bytes per span, the activations it reads, how it stores codes (None: it holds floats)."""

    span_bytes: int
    record: Record
    codes: Codes | None = None


CODES = {
    "q8": Codes(8, offset=128),
    "q8b": Codes(8, offset=128, bfloat=True),
    "q4": Codes(4, offset=8),
    "q4b": Codes(4, offset=8, bfloat=True),
    "q4m": Codes(4, minima=True),
    "q4z": Codes(4, minima=True, zeros=True),
    "q4zb": Codes(4, minima=True, zeros=True, bfloat=True),
    "q5": Codes(4, 1, offset=16),
    "q5m": Codes(4, 1, minima=True),
    "q6": Codes(4, 2, offset=32, columns=16),
    "q2": Codes(2, offset=1),
    "q2m": Codes(2, columns=16, minima=True),
    "q3": Codes(2, 1, offset=4, columns=16),
    "iq4": Codes(4, offset=128, table=IQ4),
    "mx4": Codes(4, offset=16, table=E2M1, bfloat=True),
    "nv4": Codes(4, offset=16, columns=16, table=E2M1),
}
KINDS = {
    "f32": Kind(4096, "plain"),
    "f16": Kind(2048, "plain"),
    "bf16": Kind(2048, "bf16"),
    "f8": Kind(1088, "plain"),
} | {name: Kind(codes.span_bytes, "q8", codes) for name, codes in CODES.items()}


def padded(columns: int) -> int:
    """Columns rounded up to whole spans."""
    return -(-columns // SPAN) * SPAN


def padded_rows(rows: int) -> int:
    """Rows rounded up to whole pairs of tiles."""
    return -(-rows // (2 * ROWS)) * 2 * ROWS


def packed_bytes(kind: str, rows: int, columns: int) -> int:
    """Bytes of a packed matrix [rows, columns]."""
    return padded_rows(rows) // ROWS * (padded(columns) // SPAN) * KINDS[kind].span_bytes


def record_bytes(columns: int, record: Record) -> int:
    """Bytes of one token's activation record; a multiple of 64."""
    width = padded(columns)
    return {"plain": 4 * width, "bf16": 2 * width, "q8": -(-(width + width // 16 * 7) // 64) * 64}[record]
