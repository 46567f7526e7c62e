"""The bytes of the paged KV cache, and the kinds of numbers that it can hold.

A layer's cache is blocks of KV_BLOCK positions; a block has one part a KV head, and a part its keys, then its values.
D is head_dim padded to 16; what pads a head is zero in keys and not read in values.

floats: keys [D][16 positions], values [16 positions][D].
codes:  keys [D / 2 pairs][16 positions][2], then bfloat16 scales [D / 32, rounded up][16 positions], padded to lines;
        values [D / 16 chunks][8 pairs of positions][16][2], then bfloat16 scales [16 positions], padded to a line.

So a vector of keys holds two elements of 16 positions, and one of values two positions of 16 elements: what the
instructions multiply that sum pairs of 16-bit integers. Keys share a scale in groups of 32 elements, because some
elements of rotated keys are far larger than others; values have one for each position.
"""

from dataclasses import dataclass
from typing import Literal

from .layout import KV_BLOCK

KEY_GROUP = 32  # elements of a key that share a scale
CHUNK = 16  # elements that values are worked on at a time
CODE_LIMIT = 8191  # of 16 bits: 32 products of two such codes fit into 32 bits
_LINE = 64


@dataclass(frozen=True, slots=True)
class KvKind:
    """number: what kernels know it by. size: bytes of an element. limit: the largest code; 0 where it holds floats."""

    number: int
    size: int
    limit: int = 0


KvCache = Literal["int16", "int8", "f16", "bf16", "f32"]
F32, F16, BF16, INT16, INT8 = range(5)
KV_KINDS = {
    "int16": KvKind(INT16, 2, CODE_LIMIT),
    "int8": KvKind(INT8, 1, 127),
    "f16": KvKind(F16, 2),
    "bf16": KvKind(BF16, 2),
    "f32": KvKind(F32, 4),
}


def padded_head(head_dim: int) -> int:
    """D: elements of a head rounded up to whole chunks."""
    return -(-head_dim // CHUNK) * CHUNK


def key_bytes(kind: str, head_dim: int) -> int:
    """Bytes of the keys of a head in a block."""
    numbers, row = KV_KINDS[kind], padded_head(head_dim)
    groups = -(-row // KEY_GROUP) if numbers.limit else 0
    return row * KV_BLOCK * numbers.size + -(-groups * 2 * KV_BLOCK // _LINE) * _LINE


def value_bytes(kind: str, head_dim: int) -> int:
    """Bytes of the values of a head in a block."""
    numbers = KV_KINDS[kind]
    return padded_head(head_dim) * KV_BLOCK * numbers.size + (_LINE if numbers.limit else 0)


def part_bytes(kind: str, head_dim: int) -> int:
    """Bytes of a head in a block: keys and values."""
    return key_bytes(kind, head_dim) + value_bytes(kind, head_dim)
