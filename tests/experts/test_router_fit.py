"""Routers fitted to states with planted clusters."""

import numpy as np
import pytest
from isotherm.experts.router_fit import fit_router, spherical_k_means


def planted(rng: np.random.Generator, sizes: list[int], common: float) -> tuple[np.ndarray, np.ndarray]:
    """States [T, 32] around one direction a cluster, all shifted along a common direction; and their clusters [T]."""
    directions = np.linalg.qr(rng.normal(size=(32, len(sizes) + 1)))[0].T
    clusters = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    noise = 0.05 * rng.normal(size=(len(clusters), 32))
    states = 3 * directions[clusters] + common * directions[-1] + noise
    return states.astype(np.float32), clusters


@pytest.mark.parametrize("common", [0.0, 40.0])
def test_each_cluster_goes_to_an_expert_of_its_own(common: float) -> None:
    states, clusters = planted(np.random.default_rng(3), [80, 40, 20, 10], common)
    best = (states @ fit_router(states, 4, seed=0).T).argmax(axis=1)
    pairs = set(zip(clusters.tolist(), best.tolist(), strict=True))
    assert len(pairs) == 4
    assert len({expert for _, expert in pairs}) == 4


def test_best_expert_leads_the_second_by_one_on_average() -> None:
    states, _ = planted(np.random.default_rng(4), [50, 30, 20], 10.0)
    logits = np.sort(states @ fit_router(states, 3, seed=0).T, axis=1)
    assert np.mean(logits[:, -1] - logits[:, -2]) == pytest.approx(1.0, rel=1e-4)


def test_same_seed_same_router() -> None:
    states = np.random.default_rng(5).normal(size=(60, 16)).astype(np.float32)
    np.testing.assert_array_equal(fit_router(states, 4, seed=7), fit_router(states, 4, seed=7))


def test_repeated_points_leave_no_invalid_centre() -> None:
    points = np.repeat(np.eye(2, 8), 5, axis=0)
    centres = spherical_k_means(points, 4, np.random.default_rng(0))
    np.testing.assert_allclose(np.linalg.norm(centres, axis=1), 1.0)


def test_too_few_states_are_refused() -> None:
    with pytest.raises(ValueError, match="3 states are too few to fit 8 experts"):
        fit_router(np.ones((3, 4), np.float32), 8, seed=0)
