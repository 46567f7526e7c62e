from itertools import combinations

import numpy as np
import pytest
from isotherm.placement.expert_cost import Branch, ExpertCost
from isotherm.placement.overlap import longest
from isotherm.placement.touch import independent, neutral_share


def test_the_longest_of_two_is_what_integration_gives() -> None:
    means, covariance = np.array([3.0, 2.5]), np.array([[1.0, -0.4], [-0.4, 0.5]])
    result = longest(means[:, None], covariance[:, :, None])
    steps = np.linspace(-12, 12, 401)
    x, y = np.meshgrid(steps + means[0], steps + means[1], indexing="ij")
    away = np.stack([x - means[0], y - means[1]], axis=-1)
    density = np.exp(-0.5 * np.einsum("...i,ij,...j", away, np.linalg.inv(covariance), away))
    mean = (np.maximum(x, y) * density).sum() / density.sum()
    assert result.mean[0] == pytest.approx(mean, rel=1e-4)
    assert result.variance[0] == pytest.approx(
        (np.maximum(x, y) ** 2 * density).sum() / density.sum() - mean**2, rel=1e-4
    )


def test_without_variance_it_is_the_larger() -> None:
    result = longest(np.array([[1.0, 5.0], [4.0, 2.0]]), np.zeros((2, 2, 2)))
    assert result.mean.tolist() == [4, 5]
    assert result.variance.tolist() == [0, 0]


def test_the_longest_of_three_is_near_simulation() -> None:
    means, covariances = np.array([3.0, 2.8, 2.9]), np.diag([0.5, 0.3, 0.4]) - 0.05
    drawn = np.random.default_rng(1).multivariate_normal(means, covariances, 20_000).max(axis=1)
    result = longest(means[:, None], covariances[:, :, None])
    assert result.mean[0] == pytest.approx(drawn.mean(), rel=0.01)
    assert result.mean[0] > means.max()


@pytest.mark.parametrize("here", [1, 5, 8, 11, 12])
def test_two_devices_take_longer_together_than_their_means(here: int) -> None:
    """`here` of 12 experts lie on the CPU; a token chooses 3, all choices alike."""
    branches = {-1: Branch(0.5, 0.25, np.array([0.0, 1.0])), 0: Branch(0.1, 0.0, np.array([0.0, 1.2]))}
    resident = np.where(np.arange(12) < here, -1, 0).astype(np.int8)
    times = []
    for chosen in combinations(range(12), 3):
        on_cpu = sum(expert < here for expert in chosen)
        times.append(max(on_cpu + 0.75 * (on_cpu > 0), (0.1 if here < 12 else 0) + 1.2 * (3 - on_cpu)))
    found = ExpertCost(independent(neutral_share(12, 3), 1), branches).at(resident)
    assert found.mean_ms == pytest.approx(np.mean(times), rel=0.03)
    assert np.sqrt(found.variance) == pytest.approx(np.std(times), abs=0.15)


def test_a_curve_is_the_time_of_each_set_of_hottest_experts() -> None:
    share = np.array([0.2, 0.9, 0.4, 0.3, 0.2])
    branches = {-1: Branch(0.5, 0.0, np.array([0, 1.0, 1.4, 2.0])), 0: Branch(0.1, 0.2, np.array([0, 0.3, 0.5, 0.6]))}
    cost = ExpertCost(independent(share, 3), branches)
    for n, time in enumerate(cost.curve(0)):
        resident = np.full(5, -1, np.int8)
        resident[[1, 2, 3, 0, 4][:n]] = 0
        assert time == pytest.approx(cost.at(resident).mean_ms, rel=1e-9)
