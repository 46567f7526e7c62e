"""Caches of recently used experts, against one that is kept expert by expert."""

import numpy as np
import pytest
from isotherm.placement.lru import layer_hits
from isotherm.placement.reuse import hits_beside_pins

EXPERTS, TOP_K = 9, 3


def choices(tokens: int, layers: int = 2) -> np.ndarray:
    rng = np.random.default_rng(7)
    return np.argsort(rng.random((tokens, layers, EXPERTS)) ** (1 + np.arange(EXPERTS)), axis=2)[..., -TOP_K:].astype(
        np.uint16
    )


def kept_by_hand(sample: np.ndarray, order: np.ndarray, pinned: int, slots: int) -> float:
    """Hits of a token in one layer, by a list whose last is the most recent; the cache holds its last `slots`."""
    stack = [int(expert) for expert in order[:pinned:-1]] + [int(order[pinned])] if pinned < EXPERTS else []
    hits = 0
    for token in sample:
        wanted = [int(expert) for expert in token if expert in stack]
        cached = stack[len(stack) - slots :]
        hits += sum(expert in cached for expert in wanted)
        stack = [expert for expert in stack if expert not in wanted] + wanted
    return hits / len(sample)


@pytest.mark.parametrize("pinned", [0, 2, 8])
def test_hits_are_those_of_a_cache(pinned: int) -> None:
    sample = choices(60)
    order = np.array([np.random.default_rng(layer).permutation(EXPERTS) for layer in range(2)])
    hits = hits_beside_pins(sample, order, [0, 2, 8])[pinned]
    for layer in range(2):
        for slots in range(EXPERTS - pinned + 1):
            by_hand = kept_by_hand(sample[:, layer], order[layer], pinned, slots)
            assert hits[layer, slots] == pytest.approx(by_hand)


def test_without_pins_differs_from_a_cold_cache_by_its_beginning_alone() -> None:
    sample = choices(700)
    order = np.tile(np.arange(EXPERTS), (2, 1))
    warm, cold = hits_beside_pins(sample, order, [0])[0] / TOP_K, layer_hits(sample, EXPERTS)
    assert np.abs(warm - cold).max() <= 1.001 * EXPERTS / (TOP_K * 700)


def test_streams_take_turns() -> None:
    """Two streams of one choice each: alone each token finds what the last one used, in turns it does not."""
    sample = np.repeat(np.array([[[0]], [[1]]], np.uint16), 50, axis=0)
    order = np.array([[2, 1, 0]])
    alone, turns = (hits_beside_pins(sample, order, [0], streams)[0] for streams in (1, 2))
    assert alone[0, 1] > 0.9
    assert turns[0, 1] == 0
    assert turns[0, 2] > 0.9
