"""The real engine on models from files: a runner by path, and sequences that are fed to it by hand."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from isotherm.cpu_kernels.kv_layout import KvCache
from isotherm.daemon.runner import DecoderRunner, load_runner
from isotherm.daemon.step import Chunk, StepPlan
from isotherm.experts.model import open_model
from numpy.typing import NDArray

Logits = NDArray[np.float32]


@contextmanager
def engine(
    path: Path,
    *,
    threads: int = 1,
    num_blocks: int = 64,
    max_context: int = 128,
    max_step_tokens: int = 64,
    max_running: int = 16,
    kv_cache: KvCache = "f32",
) -> Iterator[DecoderRunner]:
    """A runner of the model at `path`; its workers end with the block."""
    runner = load_runner(
        open_model(path),
        threads=threads,
        num_blocks=num_blocks,
        max_context=max_context,
        max_step_tokens=max_step_tokens,
        max_running=max_running,
        kv_cache=kv_cache,
    )
    try:
        yield runner
    finally:
        runner.close()


def lane(runner: DecoderRunner, number: int = 0) -> list[int]:
    """A block table of its own for sequence `number`: the blocks of a whole context, last first."""
    length = -(-runner.max_context // runner.block_size)
    return list(range(number * length, (number + 1) * length))[::-1]


def feed(runner: DecoderRunner, tokens: Sequence[int], start: int, table: Sequence[int]) -> Logits:
    """The logits after the last of `tokens`, which stand at `start` and after."""
    needed = table[: -(-(start + len(tokens)) // runner.block_size)]
    return runner.execute(StepPlan((Chunk("a", tokens, start, needed, True),)))[0].copy()


def feed_by(
    runner: DecoderRunner, tokens: Sequence[int], sizes: Sequence[int], table: Sequence[int]
) -> dict[int, Logits]:
    """Feed `tokens` in chunks of `sizes`, over and over: the logits by the position of each chunk's last token."""
    rows, start, turn = {}, 0, 0
    while start < len(tokens):
        part = tokens[start : start + sizes[turn % len(sizes)]]
        rows[start + len(part) - 1] = feed(runner, part, start, table)
        start, turn = start + len(part), turn + 1
    return rows


def greedy(runner: DecoderRunner, prompts: Sequence[Sequence[int]], count: int) -> tuple[list[list[int]], Logits]:
    """The best `count` tokens after each prompt, and their logits [prompts, count, vocabulary].

    The prompts are computed one by one, then all sequences decode together.
    """
    tables = [lane(runner, number) for number in range(len(prompts))]
    rows = [np.stack([feed(runner, prompt, 0, table) for prompt, table in zip(prompts, tables, strict=True)])]
    texts: list[list[int]] = [[] for _ in prompts]
    while True:
        for text, row in zip(texts, rows[-1], strict=True):
            text.append(int(row.argmax()))
        if len(rows) == count:
            return texts, np.stack(rows, axis=1)
        chunks = []
        for prompt, text, table in zip(prompts, texts, tables, strict=True):
            start = len(prompt) + len(text) - 1
            needed = table[: start // runner.block_size + 1]
            chunks.append(Chunk(str(table[0]), text[-1:], start, needed, True))
        rows.append(runner.execute(StepPlan(tuple(chunks))).copy())
