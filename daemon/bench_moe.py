"""What `isotherm bench --moe` measures: the expert part of one MoE layer with random weights and random routes.

Weights come from memory: copies of the layer run in turn, and the routes change from run to run. There are two errors,
both against float32: of the whole, with the weights as they were drawn; and of the computation alone, with the numbers
that the format has left of them, which are all that a checkpoint in that format holds.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..cpu_kernels import reference
from ..cpu_kernels.team import Team
from ..experts.formats import FORMATS, Floats
from ..experts.progress import Progress
from ..experts.random_weights import PARTS, MoeShape, can_encode, encode, random_weights
from ..experts.synthetic import MoeLayers
from .config import ConfigError
from .machine import free_memory
from .memory import GIB, RESERVE, MemoryPlanError

_ROUTES = 8  # different ones, so that few tokens do not meet the same experts again
_SECONDS = 0.5  # each number of tokens runs at least so long

Routes = list[tuple[NDArray[np.int64], Floats]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeOptions:
    """A layer's shape, the weights' format (a row of `formats`), threads, and the numbers of tokens to measure."""

    shape: MoeShape
    format: str
    threads: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MoeRow:
    """tokens in a step, microseconds of one layer, 10^9 operations/s, relative errors of the first token's output.

    error: with the weights' rounding; product_error: without it.
    """

    tokens: int
    us: float
    gops: float
    error: float
    product_error: float


def measure_moe(options: MoeOptions, progress: Progress) -> list[MoeRow]:
    """One row per number of tokens. Raises ConfigError and MemoryPlanError before anything large is allocated."""
    check(options)
    shape, most = options.shape, max(options.tokens)
    layers = MoeLayers(shape, options.format, most, options.threads, progress)
    random = np.random.default_rng(1)
    x = random.standard_normal((most, shape.hidden), np.float32)
    layers.feed(x)
    first = _routes(shape, 1, random)
    drawn, rounded = (_expected(shape, x[0], *_first(first), numbers) for numbers in (_same, _rounding(options.format)))
    rows = []
    team = Team(options.threads)
    try:
        for i, tokens in enumerate(options.tokens):
            routes = _routes(shape, tokens, random)
            for every, one in zip(routes, first, strict=True):  # so that the first token is the same in each row
                every[0][0], every[1][0] = one[0][0], one[1][0]
            output = _output(team, layers, routes)
            progress("measuring", i, len(options.tokens))
            seconds = _time(team, layers, routes)
            operations = 2 * 3 * shape.hidden * shape.intermediate * shape.active * tokens
            rows.append(
                MoeRow(
                    tokens, seconds * 1e6, operations / seconds / 1e9, _error(output, drawn), _error(output, rounded)
                )
            )
    finally:
        team.close()
    progress("measuring", len(rows), len(rows))
    return rows


def check(options: MoeOptions) -> None:
    """Raise ConfigError for what cannot be measured, MemoryPlanError for what does not fit."""
    shape, row = options.shape, FORMATS[options.format]
    if not can_encode(options.format):
        usable = ", ".join(name.lower() for name in FORMATS if can_encode(name))
        raise ConfigError(f"--format {options.format.lower()} can be read but not written here; choose from {usable}")
    if shape.active > shape.experts:
        raise ConfigError(f"--moe asks for {shape.active} active of {shape.experts} experts; name at most as many")
    for name, size in (("hidden", shape.hidden), ("intermediate", shape.intermediate)):
        if size % row.block:
            raise ConfigError(
                f"--moe asks for {name} {size}, but a block of {options.format.lower()} is {row.block} wide; a "
                f"multiple of {row.block}, or --format f32"
            )
    needed = shape.needed_bytes(row.packed, max(options.tokens))
    free = max(free_memory() - RESERVE, 0)
    if needed > free:
        raise MemoryPlanError(
            f"{shape.copies(row.packed)} copies of the layer and its activations need {needed / GIB:.2f} GiB, but only "
            f"{free / GIB:.2f} GiB of memory can be used; choose fewer experts, fewer --tokens or another --format"
        )


def _routes(shape: MoeShape, tokens: int, random: np.random.Generator) -> Routes:
    """For each step other experts for every token, all of them distinct, and weights from 0 to 1."""
    routes = []
    for _ in range(_ROUTES):
        ids = random.random((tokens, shape.experts)).argsort(axis=1)[:, : shape.active].astype(np.int64)
        routes.append((ids, random.random((tokens, shape.active), np.float32)))
    return routes


def _first(routes: Routes) -> tuple[NDArray[np.int64], Floats]:
    """The first token's experts and their weights in the first step."""
    ids, weights = routes[0]
    return ids[0], weights[0]


def _output(team: Team, layers: MoeLayers, routes: Routes) -> Floats:
    """One layer's output for the first token of the first step."""
    layers.clear()
    layers.set_routes(*routes[0])
    team.run(layers.program, layers.counts)
    return layers.output(0)


def _error(output: Floats, expected: Floats) -> float:
    return float(np.linalg.norm(output - expected) / np.linalg.norm(expected))


def _same(values: Floats) -> Floats:
    return values


def _rounding(name: str) -> Callable[[Floats], Floats]:
    """What a format leaves of numbers."""
    return lambda values: FORMATS[name].dequantise(encode(name, values))


def _expected(
    shape: MoeShape, x: Floats, ids: NDArray[np.int64], weights: Floats, numbers: Callable[[Floats], Floats]
) -> Floats:
    """The layer's output for one token, by definition; numbers: what becomes of the weights that were drawn."""
    out = np.zeros(shape.hidden, np.float32)
    for expert, weight in zip(ids.tolist(), weights, strict=True):
        gate, up, down = (numbers(random_weights(expert, part, shape)) for part in PARTS)
        inner = reference.gated(reference.linear(x[None], gate), reference.linear(x[None], up))
        out += weight * reference.linear(inner, down)[0]
    return out


def _time(team: Team, layers: MoeLayers, routes: Routes) -> float:
    """Mean seconds of one layer."""
    total, runs = 0.0, 0
    while total < _SECONDS or runs < 2:
        layers.set_routes(*routes[(runs + 1) % len(routes)])
        started = time.perf_counter()
        team.run(layers.program, layers.counts)
        total += time.perf_counter() - started
        runs += 1
    return total / (runs * layers.copies)
