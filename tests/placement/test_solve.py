"""The solver against HiGHS, against hand-made cases, and what it promises of any case."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isotherm.placement.options import undominated
from isotherm.placement.solve import Group, Infeasible, solve
from support.knapsacks import by_highs, curve_group, random_knapsack


def group(*options: tuple[float, ...]) -> Group:
    """Of options as (cost, sizes...)."""
    table = np.array(options)
    return Group(table[:, 0], table[:, 1:].astype(np.int64))


@pytest.mark.parametrize("seeds", [range(start, start + 50) for start in range(0, 200, 50)], ids=str)
def test_costs_as_little_as_highs_finds(seeds: range) -> None:
    for seed in seeds:
        groups, budgets = random_knapsack(seed)
        solution = solve(groups, budgets)
        best = by_highs(groups, budgets)
        assert solution.cost == pytest.approx(best, rel=1e-7), seed
        assert solution.bound <= best * (1 + 1e-7), seed
        assert solution.gap <= 1e-9, seed


def test_is_near_its_bound_where_layers_are_many() -> None:
    rng = np.random.default_rng(1)
    speeds = [0.05, 0.1]
    groups = [
        curve_group(np.sort(rng.dirichlet(np.full(40, 0.6)))[::-1] * 8, int(rng.choice([9, 11])), 1.0, speeds)
        for _ in range(40)
    ]
    solution = solve(groups, [3000, 5000])
    assert 0 <= solution.gap < 1e-3


@st.composite
def knapsacks(draw: st.DrawFn) -> tuple[list[Group], list[int]]:
    budgets = draw(st.integers(0, 3))
    option = st.tuples(st.floats(-5, 5), *[st.integers(0, 9)] * budgets)
    options = draw(st.lists(st.lists(option, min_size=1, max_size=5), max_size=5))
    return [group(*each) for each in options], draw(st.lists(st.integers(0, 25), min_size=budgets, max_size=budgets))


@settings(max_examples=120)
@given(knapsacks())
def test_never_exceeds_a_budget_nor_misses_the_best(case: tuple[list[Group], list[int]]) -> None:
    groups, budgets = case
    fitting = []
    for choices in product(*(range(len(each.cost)) for each in groups)):
        used = sum((each.size[i] for each, i in zip(groups, choices, strict=True)), np.zeros(len(budgets), np.int64))
        if (used <= budgets).all():
            fitting.append(sum(float(each.cost[i]) for each, i in zip(groups, choices, strict=True)))
    if not fitting:
        with pytest.raises(Infeasible):
            solve(groups, budgets)
        return
    solution = solve(groups, budgets)
    chosen = [each.size[i] for each, i in zip(groups, solution.choices, strict=True)]
    assert (sum(chosen, np.zeros(len(budgets), np.int64)) <= budgets).all()
    assert solution.cost == pytest.approx(min(fitting), abs=1e-9)
    assert solution.bound <= min(fitting) + 1e-7


def test_finishes_a_layer_rather_than_pin_the_hottest() -> None:
    """Ten experts fit. The hottest ten lie in both layers and leave both floors; one whole layer frees its own."""
    sloped = [curve_group(np.full(10, hot), 1, 3.0, [0.0]) for hot in (0.11, 0.1)]
    mixed = [curve_group(np.array([0.12] * 5 + [0.1] * 5), 1, 3.0, [0.0]) for _ in range(2)]
    for groups, hottest in ((sloped, (10, 0)), (mixed, (5, 5))):
        greedy = sum(float(each.cost[count]) for each, count in zip(groups, hottest, strict=True))
        solution = solve(groups, [10])
        assert sorted(solution.choices.tolist()) == [0, 10]
        assert solution.cost <= greedy
    assert solution.cost < greedy - 2  # a floor of 3 for a fifth of a millisecond of hit mass


def test_price_is_what_a_unit_saves() -> None:
    line = group(*[(10.0 - count, 2 * count) for count in range(11)])
    assert solve([line, line], [12]).prices == pytest.approx([0.5])


def test_a_budget_with_room_has_no_price() -> None:
    solution = solve([group((5, 0, 9), (1, 4, 0))], [2, 9])
    assert solution.prices[1] == 0
    assert solution.choices.tolist() == [0]


def test_nothing_to_choose_costs_nothing() -> None:
    solution = solve([], [5, 7])
    assert solution.cost == 0
    assert solution.choices.tolist() == []
    assert solution.prices.tolist() == [0, 0]


def test_without_budgets_takes_the_cheapest() -> None:
    assert solve([group((3,), (1,), (2,)), group((1,), (4,))], []).choices.tolist() == [1, 0]


def test_the_only_option_is_taken() -> None:
    solution = solve([group((3, 2)), group((4, 5))], [7])
    assert solution.cost == 7
    assert solution.gap == 0


def test_says_how_much_is_missing_where_nothing_fits() -> None:
    with pytest.raises(Infeasible) as error:
        solve([group((1, 9), (5, 6)), group((1, 4))], [7])
    assert error.value.overrun == (3,)


def test_says_how_much_is_missing_of_each_budget() -> None:
    with pytest.raises(Infeasible) as error:
        solve([group((1, 10, 0), (1, 0, 10)), group((1, 10, 0), (1, 0, 10))], [10, 4])
    assert error.value.overrun == (0, 6)


def test_nothing_fits_though_shares_of_options_would() -> None:
    with pytest.raises(Infeasible):
        solve([group((1, 10, 0), (1, 0, 10))], [6, 6])


def test_equal_input_gives_equal_output() -> None:
    groups, budgets = random_knapsack(5)
    first, second = solve(groups, budgets), solve(groups, budgets)
    assert first.choices.tolist() == second.choices.tolist()
    assert first.prices.tolist() == second.prices.tolist()


def test_refuses_a_group_without_options() -> None:
    with pytest.raises(ValueError, match="group 1 has no option"):
        solve([group((1, 1)), Group(np.zeros(0), np.zeros((0, 1), np.int64))], [1])


def test_refuses_sizes_of_other_budgets() -> None:
    with pytest.raises(ValueError, match="1 options x 2 budgets"):
        solve([group((1, 1))], [1, 1])


def test_refuses_sizes_below_nothing() -> None:
    with pytest.raises(ValueError, match="below 0"):
        solve([group((1, -1))], [1])


def test_drops_what_another_option_beats() -> None:
    cost = np.array([3.0, 2.0, 2.0, 5.0, 2.0])
    size = np.array([[1, 5], [1, 5], [2, 4], [0, 9], [1, 5]])
    assert undominated(cost, size).tolist() == [1, 2, 3]
