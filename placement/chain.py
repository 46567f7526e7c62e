"""Chain: activations go from part to part, so where the dense parts of neighbours lie costs hops between them."""

from itertools import pairwise

import numpy as np

from .machine import Machine
from .menu import Menu, Task
from .options import Floats, Ints
from .shape import CPU
from .solve import Group, Infeasible, Solution, solve

FACTORS = (0.0, 0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0)  # of the prices that paths are sought for
TRIED = 4  # of those paths, the cheapest at the true prices


def solve_chain(task: Task, menus: list[Menu]) -> Solution:
    """An option of each part, in the order in which a step visits them; cost and bound count the hops between.

    The knapsack knows no neighbours. So its prices, and higher and lower ones, are given to the shortest path over the
    devices of the dense parts, and it is solved again on those paths; the best of all is taken. Raises Infeasible.
    """
    hops = hop_table(task)
    first = _solve(task, menus, [np.arange(len(menu.cost)) for menu in menus])
    found = [_gathered(menus, first.choices)]
    for path in _paths(task, menus, first.prices, hops, found[0]):
        allowed = [np.flatnonzero(menu.dense == device) for menu, device in zip(menus, path, strict=True)]
        try:
            solution = _solve(task, menus, allowed)
        except Infeasible:  # the path asks for more than there is: what was found stands
            continue
        found.append(np.array([which[choice] for which, choice in zip(allowed, solution.choices, strict=True)]))
    totals = [total_ms(menus, options, hops) for options in found]
    best = int(np.argmin(totals))
    # Without its hops nothing takes longer, so the bound of the first holds.
    return Solution(found[best], totals[best], first.bound, first.prices)


def _paths(task: Task, menus: list[Menu], prices: Floats, hops: Floats, options: Ints) -> list[tuple[int, ...]]:
    """The paths that are worth a try beside the one that was taken."""
    here = tuple(int(menu.dense[option]) for menu, option in zip(menus, options, strict=True))
    if not hops.any():
        return []
    runs = [_path(menus, prices, hops, owners) for owners in _owners(task, len(menus))]
    paths: set[tuple[int, ...]] = set()
    if _path(menus, prices, hops) != here:
        paths = {_path(menus, prices * factor, hops) for factor in FACTORS} - {here, *runs}
    return runs + sorted(paths, key=lambda path: (_priced(menus, path, prices, hops), path))[:TRIED]


def _owners(task: Task, parts: int) -> list[list[int]]:
    """For each part the one accelerator that may have it: each has a run of parts as long as its budget is large. Where
    a part may lie on several at the same price, the prices alone say nothing of that."""
    sizes = np.array(task.budgets[:-1], dtype=np.float64)
    if np.count_nonzero(sizes) < 2:
        return []
    found = []
    for order in (np.arange(len(sizes)), np.arange(len(sizes))[::-1]):
        ends = np.cumsum(sizes[order]) / sizes.sum() * parts
        found.append([int(order[np.searchsorted(ends, part + 0.5)]) for part in range(parts)])
    return found


def _priced(menus: list[Menu], path: tuple[int, ...], prices: Floats, hops: Floats) -> float:
    """What a path costs at least, sizes priced."""
    least = sum(
        float((menu.cost + menu.size @ prices)[menu.dense == device].min())
        for menu, device in zip(menus, path, strict=True)
    )
    return least + sum(float(hops[source, target]) for source, target in pairwise(path))


def hop_table(task: Task) -> Floats:
    """float64 [devices, devices], from and to, in the order of the budgets; the CPU is the last."""
    machine = Machine(task.cost.hardware, task.cost.shape)
    order = (*task.cards, task.devices[0])
    return np.array([[machine.hop_ms(source, target, task.traffic.streams) for target in order] for source in order])


def total_ms(menus: list[Menu], options: Ints, hops: Floats) -> float:
    """Of all parts and the hops between them."""
    dense = [int(menu.dense[option]) for menu, option in zip(menus, options, strict=True)]
    cost = sum(float(menu.cost[option]) for menu, option in zip(menus, options, strict=True))
    return cost + sum(float(hops[source, target]) for source, target in pairwise(dense))


def _solve(task: Task, menus: list[Menu], allowed: list[Ints]) -> Solution:
    groups = [Group(menu.cost[which], menu.size[which]) for menu, which in zip(menus, allowed, strict=True)]
    return solve(groups, task.budgets)


def _gathered(menus: list[Menu], choices: Ints) -> Ints:
    """The same choices, those of parts that are alike in the order of their devices: fewer hops."""
    choices = choices.copy()
    for menu in {id(menu): menu for menu in menus}.values():
        alike = np.array([number for number, other in enumerate(menus) if other is menu])
        theirs = choices[alike]
        choices[alike] = theirs[np.lexsort((theirs, menu.dense[theirs]))]
    return choices


def _path(menus: list[Menu], prices: Floats, hops: Floats, owners: list[int] | None = None) -> tuple[int, ...]:
    """The device of each dense part on the cheapest way through all parts, sizes priced. owners: for each part, the one
    accelerator where it may lie."""
    devices = len(hops)
    numbers = np.array([*range(devices - 1), CPU])
    best, came = np.zeros(devices), []
    for step, menu in enumerate(menus):
        priced = menu.cost + menu.size @ prices
        here = np.array([priced[menu.dense == number].min(initial=np.inf) for number in numbers])
        if owners is not None:
            here[(numbers != CPU) & (numbers != owners[step])] = np.inf
        reached = best[:, None] + (hops if step else np.where(np.eye(devices, dtype=bool), 0.0, np.inf))
        came.append(reached.argmin(axis=0))
        best = reached.min(axis=0) + here
    at = int(best.argmin())
    path = []
    for previous in reversed(came):
        path.append(int(numbers[at]))
        at = int(previous[at])
    return tuple(path[::-1])
