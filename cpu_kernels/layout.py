"""Sizes of the packed layouts that kernels share.

Weights ("T16"): tiles of 16 output rows; along the input axis a tile is a run of spans of 64 columns. It lies in
memory as units of one span, or of four where a scale belongs to 256 columns; each is whole cache lines. Tiles come in
pairs: rows are padded with zeros to 32, columns to whole units.

kind  unit bytes  content
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
q4k        2304   four spans of 4-bit codes and minima; scales of two levels ("sixes")
q5          704   5-bit codes
q5m         768   5-bit codes and minima
q5k        2816   four spans of 5-bit codes and minima; scales of two levels ("sixes")
q6k        3392   four spans of 6-bit codes; scales of two levels ("bytes") for 16 columns
q2          320   2-bit codes
q2k        1344   four spans of 2-bit codes and minima; scales of two levels ("nibbles") for 16 columns
q3k        1792   four spans of 3-bit codes; scales of two levels ("sixes") for 16 columns
iq4         576   4-bit codes of the table IQ4
iq4k       2176   four spans of 4-bit codes of the table IQ4; scales of two levels ("split")
mx4         576   4-bit codes of the table E2M1, bfloat16 scales: any power of two
nv4         640   4-bit codes of the table E2M1, a scale for 16 columns

A unit of codes: float16 scales[16] for each 32 (or 16) columns, minima likewise, the high plane, the low plane. A zero
point stands where a minimum would, negated and in units of its scale, so that no product of the two is rounded. A plane
holds n bits of every code as n vectors of 64 bytes (16 rows x 4 columns) for each group of 32 columns, which are 8
such blocks of 4 columns: its first vector blocks 0 .. 8 / n - 1, the first in the lowest bits, and so on. The low plane
holds 2, 4 or 8 bits of a code, the high plane the 1 or 2 bits above them. (The high plane is read early: behind
the low one it broke up the stream of lines, and one token ran at 23 instead of 31 GB/s.)

Scales of two levels: one scales[16] and one minima[16] for the unit, then small integers, the parts, that they are
multiplied by for each 32 (or 16) columns; then, from the next cache line on, the planes of its spans, one span after
the other. The product of a float16 and a part is exact in float32. The parts of the 16 rows lie side by side:

bytes    signed bytes [16 scales of the unit][16]
nibbles  bytes [16][16]: the scale's part in the low nibble, the minimum's in the high one
sixes    four of 6 bits for each span, a b c d: uint16[16] a + 64 b + 4096 (d mod 16), then bytes[16] c + 64 (d / 16);
         those of two scales and of their minima, or of four scales, plus 32
split    two of 6 bits for each span, plus 32: bytes[2][16] with the upper two bits of those of two spans, from the
         lowest up, then for each span bytes[16] with the nibbles, the first in the low one

Activations: per token one record. Plain: float32[columns]. "bf16": bfloat16[columns]. Quantised ("q8"): int8 codes
[columns], float32 scales [columns / 64], then sums of codes as int32 [columns / 32] and [columns / 16], times the
factors SUMS: so they stand ready for the offsets of q4 and q6k. Columns are padded with zeros to whole spans.
"""

from dataclasses import dataclass
from typing import Literal

ROWS, GROUP, SPAN = 16, 32, 64
QUERY_BLOCK = 8  # most tokens of one sequence in a query block of the attention
KV_BLOCK = 16  # positions in a block of the KV cache
SUMS = {32: -8, 16: -32}  # by the columns of a sum, what a record multiplies it by
SEGMENT = 1024  # positions of a context that attention adds up by themselves
_LINE = 64

Parts = Literal["bytes", "nibbles", "sixes", "split"]
PART_BYTES: dict[Parts, int] = {"bytes": 16, "nibbles": 16, "sixes": 12, "split": 6}  # of a row of a unit

Record = Literal["plain", "bf16", "q8"]
RECORDS: tuple[Record, ...] = ("plain", "bf16", "q8")
PLAIN, BF16, Q8 = range(len(RECORDS))  # as a field of an op names them

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
    parts: how the lower level of scales lies, if there are two: then a scale and a minimum are 16-bit floats of a unit
    times small integers.
    """

    low: int
    high: int = 0
    offset: int = 0
    columns: int = GROUP
    minima: bool = False
    zeros: bool = False
    table: tuple[int, ...] = ()
    bfloat: bool = False
    parts: Parts | None = None

    @property
    def spans(self) -> int:
        """How many spans a unit has."""
        return 4 if self.parts else 1

    @property
    def halves(self) -> int:
        """How many 16-bit floats a row of a unit has as scales, and so many again as minima."""
        return 1 if self.parts else SPAN // self.columns

    @property
    def minima_at(self) -> int:
        """Where in a unit the minima lie: behind the scales."""
        return self.halves * 2 * ROWS

    @property
    def parts_at(self) -> int:
        return self.minima_at * (2 if self.minima else 1)

    @property
    def high_at(self) -> int:
        """Where the first span's high plane lies; those of the next each `plane_bytes` further."""
        return -(-(self.parts_at + (ROWS * PART_BYTES[self.parts] if self.parts else 0)) // _LINE) * _LINE

    @property
    def low_at(self) -> int:
        return self.high_at + SPAN * ROWS * self.high // 8

    @property
    def plane_bytes(self) -> int:
        """Of both planes of a span."""
        return SPAN * ROWS * (self.high + self.low) // 8

    @property
    def unit_bytes(self) -> int:
        return self.high_at + self.spans * self.plane_bytes

    @property
    def part_range(self) -> tuple[int, int]:
        """The least part of a scale, and the largest."""
        if self.parts == "bytes":
            return -128, 127
        if self.minima:
            return 0, 15 if self.parts == "nibbles" else 63
        return -32, 31

    @property
    def unsigned(self) -> tuple[int, ...]:
        """By code, the weight in units of its scale, plus `offset`: all fit into unsigned bytes."""
        return tuple(entry + self.offset for entry in self.table) or tuple(range(2 ** (self.low + self.high)))


@dataclass(frozen=True, slots=True)
class Kind:
    """A packed weight kind: bytes of a unit, the activations it reads, how it stores codes (None: it holds floats)."""

    unit_bytes: int
    record: Record
    codes: Codes | None = None

    @property
    def spans(self) -> int:
        """How many spans a unit has."""
        return self.codes.spans if self.codes else 1


CODES = {
    "q8": Codes(8, offset=128),
    "q8b": Codes(8, offset=128, bfloat=True),
    "q4": Codes(4, offset=8),
    "q4b": Codes(4, offset=8, bfloat=True),
    "q4m": Codes(4, minima=True),
    "q4z": Codes(4, minima=True, zeros=True),
    "q4zb": Codes(4, minima=True, zeros=True, bfloat=True),
    "q4k": Codes(4, minima=True, parts="sixes"),
    "q5": Codes(4, 1, offset=16),
    "q5m": Codes(4, 1, minima=True),
    "q5k": Codes(4, 1, minima=True, parts="sixes"),
    "q6k": Codes(4, 2, offset=32, columns=16, parts="bytes"),
    "q2": Codes(2, offset=1),
    "q2k": Codes(2, columns=16, minima=True, parts="nibbles"),
    "q3k": Codes(2, 1, offset=4, columns=16, parts="sixes"),
    "iq4": Codes(4, offset=128, table=IQ4),
    "iq4k": Codes(4, offset=128, table=IQ4, parts="split"),
    "mx4": Codes(4, offset=16, table=E2M1, bfloat=True),
    "nv4": Codes(4, offset=16, columns=16, table=E2M1),
}
KINDS = {
    "f32": Kind(4096, "plain"),
    "f16": Kind(2048, "plain"),
    "bf16": Kind(2048, "bf16"),
    "f8": Kind(1088, "plain"),
} | {name: Kind(codes.unit_bytes, "q8", codes) for name, codes in CODES.items()}


def padded(columns: int) -> int:
    """Columns rounded up to whole spans."""
    return -(-columns // SPAN) * SPAN


def padded_rows(rows: int) -> int:
    """Rows rounded up to whole pairs of tiles."""
    return -(-rows // (2 * ROWS)) * 2 * ROWS


def packed_shape(kind: str, rows: int, columns: int) -> tuple[int, int, int]:
    """Of a packed matrix [rows, columns]: tiles, units of a tile, bytes of a unit."""
    return padded_rows(rows) // ROWS, -(-columns // (SPAN * KINDS[kind].spans)), KINDS[kind].unit_bytes


def packed_bytes(kind: str, rows: int, columns: int) -> int:
    """Bytes of a packed matrix [rows, columns]."""
    tiles, units, unit_bytes = packed_shape(kind, rows, columns)
    return tiles * units * unit_bytes


def record_bytes(columns: int, record: Record) -> int:
    """Bytes of one token's activation record; a multiple of 64."""
    width = padded(columns)
    return {"plain": 4 * width, "bf16": 2 * width, "q8": -(-(width + width // 16 * 7) // 64) * 64}[record]
