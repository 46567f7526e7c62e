"""Sizes of the packed layouts that kernels share.

Weights ("T16"): tiles of 16 output rows; along the input axis a tile is a run of spans of 64 columns, each whole
cache lines. In a span, codes of a group of 32 columns lie as 4 (4 bit) or 8 (8 bit) vectors of 16 rows x 4 columns:

kind  span bytes  content   (tiles come in pairs: rows are padded with zeros to 32)
f32        4096   64 columns x 16 rows float32
f16        2048   64 columns x 16 rows float16
bf16       2048   64 columns x 16 rows bfloat16
q8         1088   2 groups' float16 scales[16], then 2 x 8 vectors of bytes (code + 128)
q4          576   2 groups' float16 scales[16], then 2 x 4 vectors; low nibble: even vector, high nibble: odd (code + 8)
q4m         640   2 groups' float16 scales[16], 2 groups' float16 minima[16], then as q4 with w = scale * code + minimum

Activations: per token one record. Plain: float32[columns]. Quantised ("q8 record"): int8 codes[columns], float32 scales
[columns / 32], int32 sums of codes [columns / 32]. Columns are padded with zeros to whole spans.
"""

from dataclasses import dataclass

ROWS, GROUP, SPAN = 16, 32, 64
QUERY_BLOCK = 8  # most tokens of one sequence in a query block of the attention
KV_BLOCK = 16  # positions in a block of the KV cache


@dataclass(frozen=True, slots=True)
class Kind:
    """A packed weight kind. One that is quantised multiplies quantised activations.

    header: bytes of scales and minima before a span's codes. offset: what a code carries above the signed weight.
    """

    span_bytes: int
    quantised: bool = False
    header: int = 0
    offset: int = 0


KINDS = {
    "f32": Kind(4096),
    "f16": Kind(2048),
    "bf16": Kind(2048),
    "q8": Kind(1088, True, header=64, offset=128),
    "q4": Kind(576, True, header=64, offset=8),
    "q4m": Kind(640, True, header=128),
}


def padded(columns: int) -> int:
    """Columns rounded up to whole spans."""
    return -(-columns // SPAN) * SPAN


def padded_rows(rows: int) -> int:
    """Rows rounded up to whole pairs of tiles."""
    return -(-rows // (2 * ROWS)) * 2 * ROWS


def packed_bytes(kind: str, rows: int, columns: int) -> int:
    """Bytes of a packed matrix [rows, columns]."""
    return padded_rows(rows) // ROWS * (padded(columns) // SPAN) * KINDS[kind].span_bytes


def record_bytes(columns: int, quantised: bool) -> int:
    """Bytes of one token's activation record; a multiple of 64."""
    width = padded(columns)
    return -(-(width + width // 4) // 64) * 64 if quantised else 4 * width
