"""What `isotherm bench` measures: the model alone, step by step, without HTTP, scheduler and sampler.

The work is that of llama.cpp's bench, so that both can be laid side by side: prefill is one fresh prompt, decode starts
from an empty context or the one asked for; streams are prompts of 128 tokens each, then all of them decode together,
after these or after the context asked for. After a warm-up there are some rounds of all that, and medians of the runs
that count (see `bench_runs`); where these are too few there are more rounds, and in the end the medians of all.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from ..cpu_kernels.bandwidth import PlainReads
from ..cpu_kernels.kv_layout import KvCache
from ..cpu_kernels.seating import Affinity, Seating
from ..cpu_kernels.topology import read_topology
from ..experts.model import Model, open_model
from ..experts.pack import packed_size
from ..experts.progress import Progress
from ..experts.store import PackedStore
from .bench_driver import Driver
from .bench_runs import Run, counted, rates, usual_reads
from .bench_threads import ThreadPoint, best_threads, measure_curve
from .bench_trace import write_trace
from .calibrate import kept_profile
from .config import Config, ConfigError
from .events import EventLog
from .machine import default_threads, free_memory
from .memory import GIB, RESERVE, MemoryPlanError
from .pack_cache import PackCache
from .paths import packed_folder
from .routing_profile import open_routed
from .runner import DecoderRunner, kv_block_bytes, load_runner, load_weights

STREAM_PROMPT = 128
ROUNDS = 3
_TIMES = 4  # as many rounds at most, where memory was not as fast as it usually is
_CURVE_TOKENS = 32  # generated in each run for the curve of threads
_PREFILL, _DECODE = "prefill", "decode"  # names of runs


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """threads of the engine (None: what decodes fastest) and what they are bound to, prompt tokens of the prefill,
    tokens to generate, numbers of streams, rounds of all that, tokens in the context of each before it decodes, kind of
    the KV cache, whether packed weights are taken from the store of an earlier start and kept for a later one, and
    where to write how the tokens were routed."""

    threads: int | None
    prompt: int
    gen: int
    streams: tuple[int, ...]
    rounds: int = ROUNDS
    context: int = 0
    affinity: Affinity = "none"
    kv_cache: KvCache = Config().kv_cache
    pack_cache: bool = True
    trace: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """Rates in tokens/s and GB/s (10^9 bytes), medians of the runs that count; times in seconds.

    streams: per number of streams the decode and prefill rate of all together. read_gb_s: plain read bandwidth of the
    same threads, of all that was measured between runs. decode_gb_s: bytes of weights and KV read per token times
    decode_tok_s. memory_wall_share: decode over read bandwidth, each run's over what was read just before and after it.
    load_s: until the model can run. first_token_s: from then to the first token of the first prompt, with all that is
    done only once. usual_gb_s: plain reads around runs that count; calibrated: these are the calibration's. counted: by
    what was measured, how many runs counted; 0: too few, so all did. of_all: medians of all runs. runs: all of them, in
    their order. thread_curve: what the number of threads was chosen by, if it was.
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
    usual_gb_s: float
    calibrated: bool
    counted: dict[str, int]
    of_all: dict[str, float]
    runs: tuple[Run, ...] = ()
    thread_curve: tuple[ThreadPoint, ...] = ()


def measure(path: Path, options: BenchOptions, progress: Progress) -> BenchResult:
    """Load a model and measure it. Raises ModelError, and before any weight is read ConfigError for more tokens than
    the model's context, or for a trace of one without experts, and MemoryPlanError for what does not fit."""
    started = time.perf_counter()
    decoded = max(STREAM_PROMPT, options.context) + options.gen
    positions = max(options.prompt, max(options.streams, default=1) * decoded)
    longest = max(options.prompt, decoded)
    num_blocks = -(-positions // DecoderRunner.block_size) + max(options.streams, default=1)
    model = open_model(path) if options.trace is None else open_routed(path)
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
        if options.trace is not None:
            streams, start = max(options.streams, default=1), options.context or STREAM_PROMPT
            sizes = {"prompt": options.prompt, "streams": streams, "start": start, "gen": options.gen}
            write_trace(options.trace, model, runner, **sizes)
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
        return tokens / float(np.median([driver.decode(1, tokens, 0) for _ in range(ROUNDS)]))
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
    driver = Driver(runner)
    driver.decode(1, min(options.gen, 8), 0)
    calibrated_gb_s = _calibrated_gb_s(runner.team.threads)
    runs = _runs(driver, runner.seating, options, calibrated_gb_s, progress)
    usual = usual_reads(calibrated_gb_s, runs)
    numbers, of_all = counted(runs, usual, options.rounds), rates(runs)
    medians = of_all | {work: rate for work, rate in rates(runs, usual).items() if numbers[work]}
    # a token reads all positions up to its own
    kv_bytes = runner.kv_bytes_per_token * (options.context + (options.gen + 1) / 2)
    token_bytes = runner.active_weight_bytes_per_token + kv_bytes
    shares = [token_bytes * run.tok_s / 1e9 / (sum(run.read_gb_s) / 2) for run in runs if run.work == _DECODE]
    return BenchResult(
        threads=runner.team.threads,
        prefill_tok_s=medians[_PREFILL],
        decode_tok_s=medians[_DECODE],
        streams={
            str(count): {
                "decode_tok_s": medians[_of_streams(_DECODE, count)],
                "prefill_tok_s": medians[_of_streams(_PREFILL, count)],
            }
            for count in options.streams
        },
        read_gb_s=float(np.median([run.read_gb_s[1] for run in runs])),
        decode_gb_s=token_bytes * medians[_DECODE] / 1e9,
        memory_wall_share=float(np.median(shares)),
        load_s=starting[0],
        first_token_s=starting[1],
        usual_gb_s=usual.gb_s,
        calibrated=usual.calibrated,
        counted=numbers,
        of_all=of_all,
        runs=tuple(runs),
    )


def _calibrated_gb_s(threads: int) -> float | None:
    """What plain reads of so many threads were when this machine was calibrated, if it was."""
    profile = kept_profile(threads)
    known = profile and profile.cpu.read_gb_s.get(threads)
    return known.value if known else None


def _runs(
    driver: Driver, seating: Seating, options: BenchOptions, calibrated_gb_s: float | None, progress: Progress
) -> list[Run]:
    """All runs of the rounds that were wanted, and of more until enough of each sort count."""
    runs: list[Run] = []
    plain = PlainReads(seating)
    for number in range(1, _TIMES * options.rounds + 1):
        total = max(number, options.rounds) * (2 + 2 * len(options.streams))
        for work, tokens, seconds in _sorts(driver, options):
            progress("measuring", len(runs), total)
            before = plain.gb_s()
            rate = tokens / seconds()
            runs.append(Run(work, rate, (before, plain.gb_s())))
        progress("measuring", len(runs), total)
        enough = all(counted(runs, usual_reads(calibrated_gb_s, runs), options.rounds).values())
        if number >= options.rounds and enough:
            break
    return runs


def _sorts(driver: Driver, options: BenchOptions) -> Iterator[tuple[str, int, Callable[[], float]]]:
    """What is measured in a round: its name, the tokens of all streams, and what takes the seconds."""
    gen, start = options.gen, options.context or STREAM_PROMPT
    yield _PREFILL, options.prompt, partial(driver.prefill, 1, options.prompt)
    yield _DECODE, gen, partial(driver.decode, 1, gen, options.context)
    for count in options.streams:
        yield _of_streams(_PREFILL, count), count * STREAM_PROMPT, partial(driver.prefill, count, STREAM_PROMPT)
        yield _of_streams(_DECODE, count), count * gen, partial(driver.decode, count, gen, start)


def _of_streams(work: str, count: int) -> str:
    return f"{work} of {count} stream{'' if count == 1 else 's'}"
