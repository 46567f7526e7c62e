"""Rotary frequencies: default, linear, dynamic, llama3, YaRN and LongRoPE, from config.json or from GGUF keys.

`theta ** (-2 i / rotary_dim)` radians per position, then scaled. Sources: RoFormer (Su et al. 2021), YaRN (Peng et al.
2023), LongRoPE (Ding et al. 2024), Llama 3.1 (Grattafiori et al. 2024).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import CheckpointError
from .fields import Fields
from .spec import RopeSpec

Frequencies = NDArray[np.float64]
MAX_CONTEXT = 1 << 27
MAX_FACTOR = 1e6
MIN_THETA = 1.001  # YaRN divides by its logarithm


@dataclass(frozen=True, slots=True)
class Base:
    """What every scaling starts from."""

    theta: float
    rotary_dim: int
    max_context: int

    def frequencies(self) -> Frequencies:
        exponents = np.arange(0, self.rotary_dim, 2, dtype=np.float64) / self.rotary_dim
        return np.float64(self.theta) ** -exponents


def rope_from_config(config: Fields, head_dim: int, max_context: int, theta: float) -> tuple[RopeSpec, int]:
    """The rope of a config.json and the context it holds for; `theta` is the architecture's default base.

    Reads `rope_parameters`, or the older `rope_theta` and `rope_scaling`; UnsupportedModelError for another scaling.
    """
    key = "rope_parameters" if config.has("rope_parameters") else "rope_scaling"
    scaling = config.section(key)
    own = scaling if scaling.has("rope_theta") else config
    partial = scaling if scaling.has("partial_rotary_factor") else config
    rotary_dim = int(head_dim * partial.number("partial_rotary_factor", 0.0, 1.0, 1.0))
    base = Base(own.number("rope_theta", MIN_THETA, 1e12, theta), _even(config, rotary_dim), max_context)
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    if kind not in SCALINGS:
        raise config.unsupported(key, f"asks for {kind!r}, which is not supported; these are: {', '.join(SCALINGS)}")
    # The trained context may stand beside the scaling's own keys; there it comes first.
    beside = config if config.has("original_max_position_embeddings") else scaling
    trained = beside.integer("original_max_position_embeddings", 1, MAX_CONTEXT, max_context)
    return SCALINGS[kind](base, scaling, trained)


def rope_from_gguf(keys: Fields, head_dim: int, max_context: int, factors: NDArray[np.float32] | None) -> RopeSpec:
    """The rope of GGUF keys; `factors` is the file's rope_freqs tensor, by which the frequencies are divided."""
    rotary_dim = _even(keys, keys.integer("rope.dimension_count", 2, head_dim, head_dim))
    base = Base(keys.number("rope.freq_base", MIN_THETA, 1e12, 10000.0), rotary_dim, max_context)
    kind = keys.text("rope.scaling.type", "linear" if keys.has("rope.scale_linear") else "none")
    if kind not in ("none", "linear", "yarn"):
        raise keys.unsupported(
            "rope.scaling.type", f"is {kind!r}, which is not supported; these are: none, linear, yarn"
        )
    frequencies, magnitude = base.frequencies(), 1.0
    if kind != "none":
        name = "rope.scaling.factor" if keys.has("rope.scaling.factor") else "rope.scale_linear"
        factor = keys.number(name, 1e-3, MAX_FACTOR)
        if kind == "linear":
            frequencies = frequencies / factor
        else:
            trained = keys.integer("rope.scaling.original_context_length", 1, MAX_CONTEXT, max_context)
            fast = keys.number("rope.scaling.yarn_beta_fast", 1e-3, 1e6, 32.0)
            slow = keys.number("rope.scaling.yarn_beta_slow", 1e-3, 1e6, 1.0)
            frequencies = yarn_frequencies(base, factor, trained, (fast, slow))
            magnitude = yarn_magnitude(factor)
    if factors is not None:
        frequencies = frequencies / _checked(keys, factors, len(frequencies))
    return _spec(frequencies, magnitude * keys.number("rope.scaling.attn_factor", 1e-3, 1e3, 1.0))


def _even(fields: Fields, rotary_dim: int) -> int:
    if rotary_dim < 2 or rotary_dim % 2:
        raise CheckpointError(
            f"{fields.file}: rope turns {rotary_dim} elements of a head, not an even number; correct it"
        )
    return rotary_dim


def _checked(keys: Fields, factors: NDArray[np.float32], count: int) -> Frequencies:
    if factors.shape != (count,) or not np.all(np.isfinite(factors) & (factors > 0)):
        raise CheckpointError(
            f"{keys.file}: tensor 'rope_freqs.weight' {factors.shape} are not {count} positive factors; convert it anew"
        )
    return factors.astype(np.float64)


def _spec(frequencies: Frequencies, magnitude: float = 1.0) -> RopeSpec:
    return RopeSpec(inverse_frequencies=tuple(frequencies.tolist()), magnitude=magnitude)


def _default(base: Base, scaling: Fields, trained: int) -> tuple[RopeSpec, int]:
    return _spec(base.frequencies()), base.max_context


def _linear(base: Base, scaling: Fields, trained: int) -> tuple[RopeSpec, int]:
    return _spec(base.frequencies() / scaling.number("factor", 1e-3, MAX_FACTOR)), base.max_context


def _llama3(base: Base, scaling: Fields, trained: int) -> tuple[RopeSpec, int]:
    """Long wavelengths are divided by the factor, short ones kept, those between blended."""
    factor = scaling.number("factor", 1e-3, MAX_FACTOR)
    low = scaling.number("low_freq_factor", 1e-6, 1e6)
    high = scaling.number("high_freq_factor", 1e-6, 1e6)
    if high <= low:
        raise scaling.broken("high_freq_factor", f"is {high}, not above low_freq_factor {low}")
    frequencies = base.frequencies()
    turns = trained * frequencies / (2 * math.pi)  # over the trained context
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return _spec(frequencies * (kept + (1 - kept) / factor)), base.max_context


def _yarn(base: Base, scaling: Fields, trained: int) -> tuple[RopeSpec, int]:
    factor = scaling.number("factor", 1e-3, MAX_FACTOR, base.max_context / trained)
    betas = (scaling.number("beta_fast", 1e-3, 1e6, 32.0), scaling.number("beta_slow", 1e-3, 1e6, 1.0))
    frequencies = yarn_frequencies(base, factor, trained, betas, scaling.boolean("truncate", True))
    if scaling.has("attention_factor"):
        magnitude = scaling.number("attention_factor", 1e-3, 1e3)
    elif scaling.get("mscale") and scaling.get("mscale_all_dim"):
        magnitude = yarn_magnitude(factor, scaling.number("mscale", 0.0, 1e3))
        magnitude /= yarn_magnitude(factor, scaling.number("mscale_all_dim", 0.0, 1e3))
    else:
        magnitude = yarn_magnitude(factor)
    return _spec(frequencies, magnitude), base.max_context


def yarn_magnitude(factor: float, mscale: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def yarn_frequencies(
    base: Base, factor: float, trained: int, betas: tuple[float, float], truncate: bool = True
) -> Frequencies:
    """Frequencies of more than `betas[0]` turns over the trained context are kept, those under `betas[1]` divided."""

    def dimension(turns: float) -> float:
        return base.rotary_dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base.theta))

    low, high = dimension(betas[0]), dimension(betas[1])
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, base.rotary_dim - 1)
    if low == high:
        high += 0.001
    frequencies = base.frequencies()
    divided: Frequencies = np.clip((np.arange(len(frequencies)) - low) / (high - low), 0.0, 1.0)
    blended: Frequencies = frequencies / factor * divided + frequencies * (1 - divided)
    return blended


def _longrope(base: Base, scaling: Fields, trained: int) -> tuple[RopeSpec, int]:
    """The short factors, which hold up to the trained context; beyond it every cached key would have to turn anew."""
    short = np.array(scaling.numbers("short_factor", base.rotary_dim // 2))
    factor = scaling.number("factor", 1e-3, MAX_FACTOR, base.max_context / trained)
    if scaling.has("attention_factor"):
        magnitude = scaling.number("attention_factor", 1e-3, 1e3)
    else:
        magnitude = 1.0 if factor <= 1 or trained == 1 else math.sqrt(1 + math.log(factor) / math.log(trained))
    return _spec(base.frequencies() / short, magnitude), min(trained, base.max_context)


Scaling = Callable[[Base, Fields, int], tuple[RopeSpec, int]]
# "dynamic" stretches the base only beyond max_context, where no request goes.
SCALINGS: dict[str, Scaling] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _default,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
