"""Chain: activations go from part to part, so where the dense parts of neighbours lie costs hops between them."""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from .assign import Effort, Known, assign
from .links import Links
from .menu import Menu, Task
from .options import Flags, Floats, Ints, tabulate
from .solve import Group, Solution, binding, solve

EFFORT = Effort(enough=3e-4, searched=1e-3, work=150_000)  # at most, for a plan in a second or two


def solve_chain(task: Task, menus: list[Menu], known: Solution | None = None) -> Solution:
    """An option of each part, in the order in which a step visits them; cost and bound count the hops between.

    known: a solution of menus that began with the same options, which is improved on, or kept if it is as good. Raises
    Infeasible.
    """
    limits = np.asarray(task.budgets, dtype=np.int64)
    groups = [Group(menu.cost, menu.size) for menu in menus]
    binds = binding(groups, limits)
    hops = hop_table(task)
    links, numbers = _links(menus, binds, limits, hops)
    answer = assign(links, EFFORT, None if known is None else Known(known.cost, known.prices[binds]))
    prices = np.zeros(len(limits))
    prices[binds] = answer.prices
    if answer.best is not None:
        rows = links.rows(answer.best.path)
        found = links.table.original[rows, answer.best.choices]
        options = np.array([numbers[row][option] for row, option in zip(rows, found, strict=True)])
        return Solution(options, answer.best.cost, answer.bound, prices)
    if known is not None:
        return Solution(known.choices, known.cost, answer.bound, prices)
    apart = solve(groups, task.budgets)  # which tells what is missing, and knows no hops
    return replace(apart, cost=total_ms(menus, apart.choices, hops))


def _links(menus: list[Menu], binds: Flags, limits: Ints, hops: Floats) -> tuple[Links, list[Ints]]:
    """The chain, and the numbers in its menu that the options of each of its groups have."""
    made: dict[int, tuple[list[Group], list[Ints]]] = {}  # parts that are one stay one
    for menu in menus:
        if id(menu) not in made:
            own = [np.flatnonzero(menu.dense % len(hops) == device) for device in range(len(hops))]
            made[id(menu)] = [Group(menu.cost[which], menu.size[which][:, binds]) for which in own], own
    groups = [group for menu in menus for group in made[id(menu)][0]]
    return Links(tabulate(groups, limits[binds]), hops), [which for menu in menus for which in made[id(menu)][1]]


def hop_table(task: Task) -> Floats:
    """float64 [devices, devices], from and to, in the order of the budgets; the CPU is the last."""
    machine = task.cost.machine.decoding
    order = (*task.cards, task.devices[0])
    return np.array([[machine.hop_ms(source, target, task.traffic.streams) for target in order] for source in order])


def total_ms(menus: list[Menu], options: Ints, hops: Floats) -> float:
    """Of all parts and the hops between them."""
    dense = [int(menu.dense[option]) for menu, option in zip(menus, options, strict=True)]
    cost = sum(float(menu.cost[option]) for menu, option in zip(menus, options, strict=True))
    return cost + sum(float(hops[source, target]) for source, target in pairwise(dense))
