"""Knapsacks as placement makes them, and what HiGHS says of them."""

import numpy as np
from isotherm.placement.solve import Group
from scipy.optimize import Bounds, LinearConstraint, milp


def curve_group(shares: np.ndarray, unit: int, floor: float, speeds: list[float]) -> Group:
    """A layer's experts, hottest first, on the CPU or the hottest of them on one of the cards; `speeds`: of each card,
    its time in units of the CPU's. The CPU has a floor while it holds any expert."""
    cost, size = [], []
    held = np.concatenate(([0.0], np.cumsum(shares)))
    for card, speed in enumerate(speeds):
        for count in range(len(held)):
            left = held[-1] - held[count]
            cost.append(left + floor * (count < len(shares)) + speed * held[count] + 0.1 * (count > 0))
            size.append([count * unit if number == card else 0 for number in range(len(speeds))])
    return Group(np.array(cost), np.array(size))


def random_knapsack(seed: int) -> tuple[list[Group], list[int]]:
    """Few layers, floors of all heights, experts of several sizes, one to three unequal cards."""
    rng = np.random.default_rng(seed)
    cards = 1 + seed % 3
    speeds = list(rng.uniform(0.05, 0.3, cards))
    groups = []
    for _ in range(int(rng.integers(2, 9))):
        count, unit = int(rng.integers(2, 9)), int(rng.choice([3, 5, 8]))
        shares = np.sort(rng.dirichlet(np.full(count, 0.5)))[::-1] * rng.uniform(2, 10)
        groups.append(curve_group(shares, unit, float(rng.uniform(0, 5)), speeds))
    whole = sum(int(group.size.max()) for group in groups)
    return groups, [int(whole * rng.uniform(0.05, 0.6)) for _ in range(cards)]


def by_highs(groups: list[Group], budgets: list[int]) -> float:
    """The least cost; infinity where nothing fits."""
    owner = np.repeat(np.arange(len(groups)), [len(group.cost) for group in groups])
    each = (owner == np.arange(len(groups))[:, None]).astype(float)
    size = np.vstack([group.size for group in groups]).T
    result = milp(
        np.concatenate([group.cost for group in groups]),
        constraints=[LinearConstraint(each, 1, 1), LinearConstraint(size, -np.inf, np.array(budgets, float))],
        integrality=np.ones(len(owner)),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 0.0},
    )
    assert result.status in (0, 2), result.message
    return float(result.fun) if result.status == 0 else float("inf")
