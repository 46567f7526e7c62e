"""Triton's kernels in steps that were captured for more rows than there are tokens, in the interpreter."""

from pathlib import Path

import numpy as np
import pytest
from isotherm.experts.model import open_model
from isotherm.gpu_kernels.triton_kernels import triton_kernels
from isotherm.placement.shape import CPU
from support.decoded import Counted, assert_alike, decoding, logits_of
from support.engines import engine
from support.hybrid import LIMITS, hybrid, random_placement
from support.tiny import write_gguf

SIZES = [3, 1, 3]  # in rows for 4 and for 1


@pytest.mark.parametrize("dense", [CPU, 0])
def test_steps_have_the_bits_of_the_cpu(dense, tmp_path: Path):
    write_gguf(tmp_path / "tiny.gguf", "qwen2_moe", "Q8_0", num_hidden_layers=2)
    model, card = open_model(tmp_path / "tiny.gguf"), Counted(late=3)
    with engine(model.checkpoint.path, **LIMITS) as runner:
        expected = logits_of(runner, decoding(SIZES))
    placement = random_placement(model.spec, [0.5], 1, dense=(dense,) * 4)
    with np.errstate(all="ignore"), hybrid(model, placement, [card], kernels=[triton_kernels()]) as runner:
        assert_alike(runner, decoding(SIZES), expected)
    assert card.captures > 0
