"""How a step's tokens are laid out for attention: query blocks, and the pieces of them that workers share."""

from collections.abc import Sequence

import numpy as np

from ..cpu_kernels.attention import ALL_SEGMENTS
from ..cpu_kernels.layout import QUERY_BLOCK, SEGMENT
from ..experts.step_inputs import StepInputs
from .step import Chunk


def lay_query_blocks(inputs: StepInputs, chunks: Sequence[Chunk]) -> int:
    """Fill the arrays of query blocks and pieces; the number of pieces.

    A chunk of one query block, as a running stream is, is split into the segments of its context as long as there is
    memory for their parts. A longer chunk has blocks enough to share. Either way the result is the same, bit for bit.
    """
    first = blocks = pieces = pairs = 0
    for sequence, chunk in enumerate(chunks):
        count = len(chunk.tokens)
        starts = np.arange(first, first + count, QUERY_BLOCK)
        here = slice(blocks, blocks + len(starts))
        inputs.block_first[here] = starts
        inputs.block_count[here] = np.minimum(QUERY_BLOCK, first + count - starts)
        inputs.block_table[here] = inputs.tables[sequence].ctypes.data
        wanted = max(chunk.rows, chunk.states)  # of its last tokens
        inputs.block_wanted[here] = wanted > count - np.minimum(starts - first + QUERY_BLOCK, count)
        segments = (chunk.start + count - 1) // SEGMENT + 1
        if len(starts) == 1 and segments > 1 and pairs + segments * count <= inputs.limits.partials:
            inputs.block_partial[blocks] = pairs
            pairs += segments * count
            those = slice(pieces, pieces + segments)
            inputs.piece_block[those], inputs.piece_segment[those] = blocks, np.arange(segments)
        else:
            those = slice(pieces, pieces + len(starts))
            inputs.piece_block[those] = np.arange(blocks, blocks + len(starts))
            inputs.piece_segment[those] = ALL_SEGMENTS
        first, blocks, pieces = first + count, here.stop, those.stop
    return pieces
