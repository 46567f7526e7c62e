"""Chain: activations go from part to part, so where the dense parts of neighbours lie costs hops between them."""

from itertools import pairwise

import numpy as np

from .machine import Machine
from .menu import Menu, Task
from .options import Floats, Ints
from .solve import Group, Infeasible, Solution, solve

ROUNDS = 2  # of prices and paths; the prices hardly change after


def solve_chain(task: Task, menus: list[Menu]) -> Solution:
    """An option of each part, in the order in which a step visits them; cost and bound count the hops between.

    The knapsack knows no neighbours. So its prices are given to the shortest path over the devices of the dense parts,
    and it is solved again on that path; the best of all is taken. Raises Infeasible.
    """
    hops = hop_table(task)
    every = [np.arange(len(menu.cost)) for menu in menus]
    first = _solve(task, menus, every)
    found = [_gathered(menus, first.choices)]
    prices = first.prices
    asked: list[list[int]] = []
    for _ in range(ROUNDS if hops.any() else 0):
        path = _path(menus, prices, hops)
        here = [int(menu.dense[option]) for menu, option in zip(menus, found[-1], strict=True)]
        if path == here or path in asked:
            break
        asked.append(path)
        allowed = [np.flatnonzero(menu.dense == device) for menu, device in zip(menus, path, strict=True)]
        try:
            solution = _solve(task, menus, allowed)
        except Infeasible:  # the path asks for more than there is: what was found stands
            break
        found.append(np.array([which[choice] for which, choice in zip(allowed, solution.choices, strict=True)]))
        prices = solution.prices
    totals = [total_ms(menus, options, hops) for options in found]
    best = int(np.argmin(totals))
    # Without its hops nothing takes longer, so the bound of the first holds.
    return Solution(found[best], totals[best], first.bound, first.prices)


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


def _path(menus: list[Menu], prices: Floats, hops: Floats) -> list[int]:
    """The device of each dense part on the cheapest way through all parts, sizes priced."""
    devices = len(hops)
    numbers = np.array([*range(devices - 1), -1])
    best, came = np.zeros(devices), []
    for step, menu in enumerate(menus):
        priced = menu.cost + menu.size @ prices
        here = np.array([priced[menu.dense == number].min(initial=np.inf) for number in numbers])
        reached = best[:, None] + (hops if step else np.where(np.eye(devices, dtype=bool), 0.0, np.inf))
        came.append(reached.argmin(axis=0))
        best = reached.min(axis=0) + here
    at = int(best.argmin())
    path = []
    for previous in reversed(came):
        path.append(int(numbers[at]))
        at = int(previous[at])
    return path[::-1]
