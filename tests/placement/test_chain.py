"""Hops between neighbours, against every choice there is."""

from itertools import pairwise, product

import numpy as np
import pytest
from isotherm.placement import chain
from isotherm.placement.assign import Answer
from isotherm.placement.chain import hop_table, solve_chain, total_ms
from isotherm.placement.cost import CostModel
from isotherm.placement.dual import highest_bound
from isotherm.placement.links import Links
from isotherm.placement.menu import Menu, Task, menu_of
from isotherm.placement.options import tabulate
from isotherm.placement.placed import Traffic
from isotherm.placement.shape import CPU
from isotherm.placement.solve import Group
from isotherm.placement.starts import starts
from support.cost_cases import accelerator, layer, machine, model


def task(*, hop_us: float, budget: int) -> Task:
    cost = CostModel(model(), machine(accelerator(hop_us=hop_us)))
    return Task(cost, Traffic(), (budget, 1 << 40), 0)


def part(here: Task, on_card: float, on_cpu: float) -> Menu:
    shape = layer(0, 0)
    return Menu.join([menu_of(here, shape, [on_cpu], CPU), menu_of(here, shape, [on_card], 0)])


@pytest.mark.parametrize("hop_us", [0, 5, 30])
@pytest.mark.parametrize("fitting", [1, 2, 3, 5])
def test_finds_the_least_time_with_hops(hop_us: float, fitting: int) -> None:
    here = task(hop_us=hop_us, budget=fitting * layer(0, 0).dense_bytes)
    saved = [0.05, 0.1, 0.02, 0.11, 0.05]
    menus = [part(here, 1 - each, 1.0) for each in saved]
    hops = hop_table(here)
    least = min(
        total_ms(menus, np.array(options), hops)
        for options in product((0, 1), repeat=len(menus))
        if sum(options) <= fitting
    )
    solution = solve_chain(here, menus)
    assert solution.bound <= least + 1e-12
    assert solution.cost <= least * 1.01
    assert solution.choices.sum() <= fitting


def test_parts_that_are_alike_lie_together() -> None:
    here = task(hop_us=30, budget=3 * layer(0, 0).dense_bytes)
    alike = part(here, 0.8, 1.0)
    dense = solve_chain(here, [alike] * 7).choices.tolist()
    assert sum(dense) == 3
    assert sum(one != other for one, other in pairwise(dense)) == 1


def test_two_equal_cards_each_take_a_run_of_layers() -> None:
    shape = layer(0, 0)
    cost = CostModel(model(), machine(accelerator(hop_us=20), accelerator(hop_us=20)))
    here = Task(cost, Traffic(), (32 * shape.dense_bytes, 32 * shape.dense_bytes, 1 << 40), 0)
    saved = [0.5, 0.52, 0.51, 0.53, 0.54, 0.5, 0.52, 0.51] * 8
    menus = [
        Menu.join([menu_of(here, shape, [1.0], CPU), *(menu_of(here, shape, [1 - each], card) for card in (0, 1))])
        for each in saved
    ]
    solution = solve_chain(here, menus)
    dense = [int(menu.dense[choice]) for menu, choice in zip(menus, solution.choices, strict=True)]
    assert sorted(dense) == [0] * 32 + [1] * 32
    assert sum(one != other for one, other in pairwise(dense)) == 1


def test_hops_count_where_parts_are_chosen_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where no start of a row can be made to fit."""
    here = task(hop_us=30, budget=2 * layer(0, 0).dense_bytes)
    menus = [part(here, 1 - saved, 1.0) for saved in (0.0, 0.5, 0.0, 0.5, 0.0)]
    monkeypatch.setattr(chain, "assign", lambda links, *_: Answer(None, 0.0, np.zeros(len(links.budgets))))
    solution, hops = solve_chain(here, menus), hop_table(here)
    assert solution.choices.tolist() == [0, 1, 0, 1, 0]
    assert solution.cost == pytest.approx(4 + 2 * (hops[0, 1] + hops[1, 0]))


@pytest.mark.parametrize("fitting", [4, 7])
def test_the_bound_counts_hops(fitting: int) -> None:
    """The ends stay on the CPU, and all between that fit lie together: to the card and back costs two hops."""
    here = task(hop_us=30, budget=fitting * layer(0, 0).dense_bytes)
    ends, alike = part(here, 5.0, 1.0), part(here, 0.5, 1.0)
    solution = solve_chain(here, [ends, *[alike] * 7, ends])
    hops = hop_table(here)
    assert solution.cost == pytest.approx(9 - fitting * 0.5 + hops[0, 1] + hops[1, 0])
    assert solution.bound > 9 - fitting * 0.5 + (0.5 if fitting < 7 else 0.99) * (hops[0, 1] + hops[1, 0])


def test_what_the_relaxed_problem_mixes_is_dealt_out_in_runs() -> None:
    """Of two cards of room for half the parts each it mixes both, neither of which fits alone."""
    ways = [Group(np.array([0.5]), np.array([size])) for size in ([1, 0], [0, 1])]
    host = Group(np.array([1.0]), np.array([[0, 0]]))
    table = tabulate([*ways, host] * 16, np.array([8, 8]))
    links = Links(table, 0.02 * (1 - np.eye(3)))
    dual = highest_bound(links, [np.array([0.1, 0.1])])
    assert dual is not None
    _, path, _ = starts(links, dual)[0]
    assert sorted(path.tolist()) == [0] * 8 + [1] * 8
    assert sum(one != other for one, other in pairwise(path.tolist())) == 1
