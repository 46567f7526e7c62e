"""What `isotherm bench` measures: the model alone, step by step, without HTTP, scheduler and sampler.

The protocol is llama.cpp's, so that both can be laid side by side: prefill is one fresh prompt, decode starts from an
empty context or the one asked for, both as the mean rate of three repetitions after a warm-up; streams are prompts of
128 tokens each, then all of them decode together, once, after these or after the context asked for.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..cpu_kernels.bandwidth import read_gb_s
from ..cpu_kernels.kv_layout import KvCache
from ..cpu_kernels.seating import Affinity, Seating
from ..cpu_kernels.topology import read_topology
from ..experts.model import Model, open_model
from ..experts.pack import packed_size
from ..experts.progress import Progress
from ..experts.store import PackedStore
from .bench_threads import ThreadPoint, best_threads, measure_curve
from .config import Config, ConfigError
from .events import EventLog
from .machine import default_threads, free_memory
from .memory import GIB, RESERVE, MemoryPlanError
from .pack_cache import PackCache
from .paths import packed_folder
from .runner import DecoderRunner, kv_block_bytes, load_runner, load_weights
from .step import Chunk, Runner, StepPlan

STREAM_PROMPT = 128
REPETITIONS = 3
_CURVE_TOKENS = 32  # generated in each run for the curve of threads
_SEED = 20_08


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """threads of the engine (None: what decodes fastest) and what they are bound to, prompt tokens of the prefill,
    tokens to generate, numbers of streams, tokens in the context of each before it decodes, kind of the KV cache, and
    whether packed weights are taken from the store of
    an earlier start and kept for a later one."""

    threads: int | None
    prompt: int
    gen: int
    streams: tuple[int, ...]
    context: int = 0
    affinity: Affinity = "none"
    kv_cache: KvCache = Config().kv_cache
    pack_cache: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """Rates in tokens/s and GB/s (10^9 bytes), times in seconds.

    streams: per number of streams the decode and prefill rate of all together. read_gb_s: plain read bandwidth of the
    same threads, the median of what was measured around the decode runs. decode_gb_s: bytes of weights and KV read per
    token times decode_tok_s. memory_wall_share: decode over read bandwidth, each run's over what was read just before
    and after it, since that changes within seconds where others use the machine; their median. load_s: until the
    model can run. first_token_s: from then to the first token of the first prompt, with all that is done only once.
    thread_curve: what the number of threads was chosen by, if it was.
    """

    threads: int
    prefill_tok_s: float
    decode_tok_s: float
    streams: dict[str, dict[str, float]]
    read_gb_s: float
    decode_gb_s: float
    memory_wall_share: float
    load_s: float
    first_token_s: float
    thread_curve: tuple[ThreadPoint, ...] = ()


def measure(path: Path, options: BenchOptions, progress: Progress) -> BenchResult:
    """Load a model and measure it. Raises ModelError, and before any weight is read ConfigError for more tokens than
    the model's context and MemoryPlanError for what does not fit."""
    started = time.perf_counter()
    decoded = max(STREAM_PROMPT, options.context) + options.gen
    positions = max(options.prompt, max(options.streams, default=1) * decoded)
    longest = max(options.prompt, decoded)
    num_blocks = -(-positions // DecoderRunner.block_size) + max(options.streams, default=1)
    model = open_model(path)
    _check_fit(model, longest, num_blocks * kv_block_bytes(model.spec, options.kv_cache))
    topology = read_topology()
    seating = Seating(options.threads or default_threads(topology=topology), topology, options.affinity)
    cache = PackCache(PackedStore(packed_folder(), model), EventLog()) if options.pack_cache else None
    runner = load_runner(
        model,
        threads=seating,
        weights=load_weights(model, threads=seating, cache=cache, progress=progress),
        num_blocks=num_blocks,
        max_context=longest,
        max_running=max(options.streams, default=1),
        kv_cache=options.kv_cache,
        progress=progress,
    )
    load_s = time.perf_counter() - started
    try:
        runner.fill_cache()
        result = _measure_loaded(runner, options, load_s, progress)
    finally:
        runner.close()
    if cache is not None:
        cache.write(seating, progress)  # after what it would have disturbed
    return result


def _measure_loaded(runner: DecoderRunner, options: BenchOptions, load_s: float, progress: Progress) -> BenchResult:
    first_token_s = Driver(runner).prefill(1, options.prompt)
    if options.threads is not None:
        return _measure(runner, options, (load_s, first_token_s), progress)
    tokens = min(options.gen, _CURVE_TOKENS)
    curve = measure_curve(lambda threads: _decode_rate(runner, threads, tokens), runner.seating, progress)
    chosen = runner.on_threads(best_threads(curve))
    try:
        Driver(chosen).prefill(1, options.prompt)  # its buffers are new
        return replace(_measure(chosen, options, (load_s, first_token_s), progress), thread_curve=curve)
    finally:
        chosen.close()


def _decode_rate(runner: DecoderRunner, threads: int, tokens: int) -> float:
    """Tokens/s of one stream with so many threads: the median of some runs."""
    other = runner.on_threads(threads)
    try:
        driver = Driver(other)
        driver.decode(1, min(tokens, 8), 0)
        return tokens / float(np.median([driver.decode(1, tokens, 0) for _ in range(REPETITIONS)]))
    finally:
        other.close()


def _check_fit(model: Model, longest: int, kv_bytes: int) -> None:
    if longest > model.spec.max_context:
        raise ConfigError(
            f"--prompt, or --gen after --context or the {STREAM_PROMPT} tokens of a stream's prompt, needs a "
            f"context of {longest}; this model takes at most {model.spec.max_context} tokens"
        )
    needed = packed_size(model) + kv_bytes
    free = max(free_memory() - RESERVE, 0)
    if needed > free:
        raise MemoryPlanError(
            f"weights and KV cache need {needed / GIB:.2f} GiB, but only {free / GIB:.2f} GiB of memory can be used; "
            "measure a smaller model, or fewer --streams"
        )


def _measure(
    runner: DecoderRunner, options: BenchOptions, starting: tuple[float, float], progress: Progress
) -> BenchResult:
    """starting: load_s and first_token_s, which can be measured only once."""
    driver, total = Driver(runner), 2 * REPETITIONS + len(options.streams) + 1
    driver.decode(1, min(options.gen, 8), 0)
    prefill, decode, reads = [], [], []
    for i in range(REPETITIONS):
        progress("measuring", i, total)
        prefill.append(options.prompt / driver.prefill(1, options.prompt))
    for i in range(REPETITIONS):
        progress("measuring", REPETITIONS + i, total)
        # briefly: after reads of a second some steps took 40 ms more
        reads.append(read_gb_s(runner.seating, repeats=1))
        decode.append(options.gen / driver.decode(1, options.gen, options.context))
    reads.append(read_gb_s(runner.seating, repeats=1))
    streams = {}
    for i, count in enumerate(options.streams):
        progress("measuring", 2 * REPETITIONS + i, total)
        prefill_s = driver.prefill(count, STREAM_PROMPT)
        decode_s = driver.decode(count, options.gen, options.context or STREAM_PROMPT)
        streams[str(count)] = {
            "decode_tok_s": count * options.gen / decode_s,
            "prefill_tok_s": count * STREAM_PROMPT / prefill_s,
        }
    threads, decode_tok_s = runner.team.threads, float(np.mean(decode))
    # a token reads all positions up to its own
    kv_bytes = runner.kv_bytes_per_token * (options.context + (options.gen + 1) / 2)
    token_bytes = runner.active_weight_bytes_per_token + kv_bytes
    result = BenchResult(
        threads=threads,
        prefill_tok_s=float(np.mean(prefill)),
        decode_tok_s=decode_tok_s,
        streams=streams,
        read_gb_s=float(np.median(reads)),
        decode_gb_s=token_bytes * decode_tok_s / 1e9,
        memory_wall_share=_share([token_bytes * rate / 1e9 for rate in decode], reads),
        load_s=starting[0],
        first_token_s=starting[1],
    )
    progress("measuring", total, total)
    return result


def _share(decode: list[float], reads: list[float]) -> float:
    """Median of the decode runs' bandwidth, each over the mean of the reads before and after it."""
    around = [(before + after) / 2 for before, after in pairwise(reads)]
    return float(np.median([rate / read for rate, read in zip(decode, around, strict=True)]))


class Driver:
    """Runs steps over random tokens. Stream i owns the same blocks in every measurement."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._random = np.random.default_rng(_SEED)

    def prefill(self, streams: int, prompt: int) -> float:
        """Seconds to compute a fresh prompt of `prompt` tokens for each stream, in steps as full as they may be."""
        chunks = self._prompt_chunks(streams, prompt)
        started = time.perf_counter()
        for plan in pack_steps(chunks, self.runner.max_step_tokens, self.runner.block_size):
            self.runner.execute(plan)
        return time.perf_counter() - started

    def decode(self, streams: int, gen: int, start: int) -> float:
        """Seconds for `gen` more tokens of each stream, all in one step at a time, after `start` positions."""
        tokens = self._tokens(gen * streams).reshape(gen, streams)
        tables = self._tables(streams, start + gen)
        started = time.perf_counter()
        for i, row in enumerate(tokens):
            position = start + i
            blocks = position // self.runner.block_size + 1
            self.runner.execute(
                StepPlan(
                    tuple(Chunk(str(s), [int(row[s])], position, tables[s][:blocks], True) for s in range(streams))
                )
            )
        return time.perf_counter() - started

    def _prompt_chunks(self, streams: int, prompt: int) -> list[Chunk]:
        tables = self._tables(streams, prompt)
        return [Chunk(str(s), self._tokens(prompt).tolist(), 0, tables[s], True) for s in range(streams)]

    def _tokens(self, count: int) -> NDArray[np.int64]:
        return self._random.integers(0, self.runner.vocab_size, count)

    def _tables(self, streams: int, positions: int) -> list[list[int]]:
        each = self.runner.num_blocks // streams
        needed = -(-positions // self.runner.block_size)
        return [list(range(s * each, s * each + needed)) for s in range(streams)]


def pack_steps(chunks: Sequence[Chunk], max_tokens: int, block_size: int) -> list[StepPlan]:
    """Plans of at most `max_tokens` tokens that compute the chunks in order, cut where a step is full."""
    plans: list[StepPlan] = []
    current: list[Chunk] = []
    room = max_tokens
    for chunk in chunks:
        done = 0
        while done < len(chunk.tokens):
            if not room:
                plans.append(StepPlan(tuple(current)))
                current, room = [], max_tokens
            count = min(room, len(chunk.tokens) - done)
            end = done + count
            current.append(
                Chunk(
                    chunk.request_id,
                    chunk.tokens[done:end],
                    done,
                    chunk.block_table[: -(-end // block_size)],
                    end == len(chunk.tokens),
                )
            )
            room, done = room - count, end
    return [*plans, StepPlan(tuple(current))] if current else plans
