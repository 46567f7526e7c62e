"""Stack distances against an LRU cache that is played through for every size."""

import numpy as np
import pytest
from isotherm.placement import lru
from numpy.typing import NDArray
from support.routing import random_sample

SHAPES = [(1, 1, 4, 4), (30, 3, 5, 2), (64, 2, 6, 1), (40, 5, 4, 3), (70, 1, 7, 2)]  # tokens, layers, experts, top_k


def played(sample: NDArray[np.uint16], experts: int) -> NDArray[np.float64]:
    """Hit rates of one cache for all layers, by slots, each size played by itself."""
    rates = []
    for slots in range(sample.shape[1] * experts + 1):
        cache: list[tuple[int, int]] = []  # the most recent first
        hits = 0
        for token in sample.tolist():
            for layer, chosen in enumerate(token):
                hits += sum((layer, expert) in cache for expert in chosen)
                for expert in chosen:
                    if (layer, expert) in cache:
                        cache.remove((layer, expert))
                    cache.insert(0, (layer, expert))
                del cache[slots:]
        rates.append(hits / sample.size)
    return np.array(rates)


def samples(shape: tuple[int, int, int, int]) -> NDArray[np.uint16]:
    return random_sample(np.random.default_rng(shape[0]), *shape, liking=np.linspace(0, 3, shape[2]))


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small samples have several, and a last one that is not full."""
    monkeypatch.setattr(lru, "RUN", 8)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_cache_for_each_layer(shape: tuple[int, int, int, int]) -> None:
    sample = samples(shape)
    wanted = [played(sample[:, layer : layer + 1], shape[2]) for layer in range(shape[1])]
    np.testing.assert_allclose(lru.layer_hits(sample, shape[2]), wanted, rtol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_one_cache_for_all_layers(shape: tuple[int, int, int, int]) -> None:
    sample = samples(shape)
    np.testing.assert_allclose(lru.global_hits(sample, shape[2]), played(sample, shape[2]), rtol=1e-12)


def test_one_cache_smaller_than_a_token_hits_nothing() -> None:
    sample = np.broadcast_to(np.arange(2, dtype=np.uint16), (50, 6, 2))
    hits = lru.global_hits(sample, 4)
    assert hits[10] == 0  # what the other five layers take
    assert hits[12] == pytest.approx(49 / 50)


def test_only_first_uses_miss_where_everything_fits() -> None:
    sample = samples((64, 2, 6, 1))
    used = sum(len(np.unique(sample[:, layer])) for layer in range(2))
    assert lru.global_hits(sample, 6)[-1] == pytest.approx(1 - used / sample.size)
