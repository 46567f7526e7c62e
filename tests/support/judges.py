"""Judging an engine with quantised weights by its definition and by the float model of the same weights."""

from pathlib import Path
from typing import Any

import numpy as np
from isotherm.experts.model import open_model
from support import tiny
from support.engines import engine, greedy
from support.oracle import RoundedReference, errors
from support.tiny import VOCAB_SIZE

# Errors of single products add like independent noise. Four products in a row per layer and the head are 9 in two
# layers, so sqrt(9) = 3 times one product's; a third more is left for the spread between models.
GROWTH = 4
# Against the definition only the order of float sums differs. Where that decides between two int8 codes, the rest of
# the sequence differs by about 1 %. About one short sequence of four meets such a place, and a wrong kernel spares
# none: so one of eight that is equal tells enough.
SAME = 2e-6
SHORT_PROMPTS = [[int(token) for token in np.random.default_rng(n).integers(0, VOCAB_SIZE, 4 + n)] for n in range(8)]


def check_quantised(path: Path, model: Any, product_error: float) -> None:
    """Against both judges, over several short texts."""
    with engine(path, max_context=32) as runner:
        texts, rows = greedy(runner, SHORT_PROMPTS, 4)
    rounded = RoundedReference(open_model(path))
    to_definition, to_exact = [], []
    for prompt, text, got in zip(SHORT_PROMPTS, texts, rows, strict=True):
        tokens = prompt + text[:-1]
        to_definition.append(errors(got, rounded.logits(tokens)[len(prompt) - 1 :]).max())
        to_exact += list(errors(got, tiny.logits(model, tokens)[len(prompt) - 1 :]))
    assert min(to_definition) < SAME
    # Where rounding decides between two experts, what follows is another text to the float model: that may happen to
    # every other token of a small mixture, and says nothing about the products.
    assert np.quantile(to_exact, 1 / 3) < GROWTH * product_error
