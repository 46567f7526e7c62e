"""Paged caches of each kind filled with random keys and values, and the attention op run over them."""

import numpy as np
from isotherm.cpu_kernels import kv_reference
from isotherm.cpu_kernels.attention import ALL_SEGMENTS, FIELDS, attention, scratch_bytes
from isotherm.cpu_kernels.attention_rows import part_bytes as record_bytes
from isotherm.cpu_kernels.descriptor import N_PIECES
from isotherm.cpu_kernels.kv_layout import KV_KINDS, key_bytes
from isotherm.cpu_kernels.layout import KV_BLOCK, QUERY_BLOCK, RECORDS, SEGMENT
from isotherm.cpu_kernels.layout import record_bytes as layout_bytes

from .ops import run_op


class Cache:
    """A paged cache of random numbers. k, v: the numbers as the cache holds them; exact_k, exact_v: as they were."""

    def __init__(self, blocks, kv_heads, head_dim, kind="f32"):
        rng = np.random.default_rng(blocks)
        self.kv_heads, self.head_dim, self.kind = kv_heads, head_dim, kind
        self.exact_k = rng.standard_normal((blocks, kv_heads, head_dim, KV_BLOCK), np.float32)
        self.exact_v = rng.standard_normal((blocks, kv_heads, KV_BLOCK, head_dim), np.float32)
        self.pack()

    def pack(self):
        """Take over what was changed in exact_k and exact_v."""
        self.cache, self.k, self.v = kv_reference.pack_kv(self.kind, self.exact_k, self.exact_v)

    def attend(self, sequences, window=0, chunk=QUERY_BLOCK, threads=1, split=False, record="plain", wanted=None):
        """The kernel's output for each sequence (q [tokens, heads, head_dim], block table, first position).

        split: each segment of a query block is a piece of its own. record: the form of the outputs; all but "plain"
        are returned as the bytes of a token's record. wanted: for each query block, whether it is computed; the rows
        of others are NaN.
        """
        heads = sequences[0][0].shape[1]
        q = np.concatenate([q for q, _, _ in sequences])
        positions = np.concatenate([np.arange(first, first + len(q)) for q, _, first in sequences])
        blocks, pieces, partials, row, tokens = [], [], [], 0, 0
        for part, table, first in sequences:
            for start in range(0, len(part), chunk):
                count = min(chunk, len(part) - start)
                segments = (first + start + count - 1) // SEGMENT + 1
                pieces += [(len(blocks), s) for s in range(segments)] if split else [(len(blocks), ALL_SEGMENTS)]
                blocks.append((row + start, count, table.ctypes.data))
                partials.append(tokens)
                tokens += segments * count
            row += len(part)
        first, count, tables = (np.array(column, np.int64) for column in zip(*blocks, strict=True))
        piece_block, piece_segment = (np.array(column, np.int64) for column in zip(*pieces, strict=True))
        out = np.full(q.shape, np.nan, np.float32)
        if record != "plain":
            out = np.full((len(q), layout_bytes(heads * self.head_dim, record)), 0xFF, np.uint8)
        stride = scratch_bytes(heads, self.kv_heads)
        finished = np.zeros(len(blocks) * self.kv_heads, np.int64)
        fields = {"q": q, "q_stride": q.strides[0], "out": out, "out_stride": out.strides[0], "heads": heads}
        fields |= {"kv_heads": self.kv_heads, "head_dim": self.head_dim, "window": window, "positions": positions}
        fields |= {"out_record": RECORDS.index(record), "wanted": 0 if wanted is None else np.array(wanted, np.int64)}
        fields |= {"k_cache": self.cache, "v_cache": self.cache.ctypes.data + key_bytes(self.kind, self.head_dim)}
        fields |= {"kv_kind": KV_KINDS[self.kind].number, "head_bytes": self.cache.strides[1]}
        fields |= {"block_bytes": self.cache.strides[0], "scratch_stride": stride}
        fields |= {"scratch": np.full(threads * stride, 0xFF, np.uint8), "block_partial": np.array(partials, np.int64)}
        fields |= {"block_first": first, "block_count": count, "block_table": tables}
        fields |= {"piece_block": piece_block, "piece_segment": piece_segment, "finished": finished}
        fields |= {"partials": np.full(tokens * heads * record_bytes(self.head_dim), 0xFF, np.uint8)}
        run_op(attention, FIELDS, fields, step={N_PIECES: len(pieces)}, threads=threads)
        assert not finished.any()
        return np.split(out, np.cumsum([len(q) for q, _, _ in sequences])[:-1])

    def expected(self, q, table, first, window=0):
        """The definition over the numbers that the cache holds."""
        return kv_reference.attention(q, self.k, self.v, table, np.arange(first, first + len(q)), window)

    def exact(self, q, table, first):
        """The definition over the numbers before they were rounded."""
        return kv_reference.attention(q, self.exact_k, self.exact_v, table, np.arange(first, first + len(q)))


def random_q(tokens, heads, head_dim):
    q = np.random.default_rng(tokens).standard_normal((tokens, heads, head_dim), np.float32)
    return q * np.float32(head_dim**-0.5)


def random_table(blocks, length, seed=0):
    return np.random.default_rng(seed).permutation(blocks)[:length].astype(np.int64)
