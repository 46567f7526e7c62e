"""The second half of a start's self-test: all ops together, on a small model like the one that is served.

`experts.self_test` has compared each product with its definition before. Here it is norm, rope, cache, attention,
routing and the experts' ops, which nothing can take the place of.
"""

import numpy as np
from numpy.typing import NDArray

from ..cpu_kernels.down import FEW_PAIRS
from ..cpu_kernels.jit import cache_folder
from ..cpu_kernels.kv_layout import KvCache
from ..cpu_kernels.layout import KV_BLOCK
from ..cpu_kernels.seating import Seating
from ..experts.errors import KernelError
from ..experts.kv_store import KvStore
from ..experts.pack import PackedWeights
from ..experts.reference import ReferenceDecoder
from ..experts.small_model import small_model
from ..experts.spec import ModelSpec
from ..experts.step_inputs import StepLimits
from .runner import DecoderRunner
from .step import Chunk, StepPlan

_TOLERANCE = 0.1  # ||got - expected|| / ||expected||: activations are rounded, and the cache may be


def check_ops(spec: ModelSpec, weights: PackedWeights, kv_cache: KvCache) -> int:
    """Compare the logits after a prompt and after one more token with the definition. Returns how many ops were run.

    Raises KernelError where they differ.
    """
    small = small_model(spec, weights)
    prompt = FEW_PAIRS // (small.spec.routing.top_k if small.spec.routing else 1) + 5  # the next token has few pairs
    tokens = [(7 * i + 3) % small.spec.vocab_size for i in range(prompt + 1)]
    expected = ReferenceDecoder(small).logits(tokens)[-2:]
    blocks = tuple(reversed(range(-(-len(tokens) // KV_BLOCK))))
    cache, limits = KvStore(small.spec, len(blocks), kv_cache), StepLimits(prompt, 1, len(blocks))
    runner = DecoderRunner(small.spec, small.packed, cache, limits, len(blocks), Seating.of(1))
    try:
        got = [
            runner.execute(StepPlan((Chunk("self-test", part, start, blocks, True),)))[0].copy()
            for part, start in ((tokens[:-1], 0), (tokens[-1:], prompt))
        ]
    finally:
        runner.close()
    for what, row, definition in zip(("a prompt", "one token more"), got, expected, strict=True):
        error = _error(row, definition)
        if not error <= _TOLERANCE:
            fault = f"after {what} the logits of a small model are off by {error:.2g} of their size"
            raise KernelError(fault, cache_folder())
    return runner.num_ops


def _error(got: NDArray[np.float32], expected: NDArray[np.floating]) -> float:
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))
