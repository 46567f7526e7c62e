"""Solve: one option of each group at the least cost within all budgets (a multiple-choice knapsack)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .exchange import improve, least_overrun, repair
from .frontier import search
from .options import Floats, Ints, Options, tabulate
from .prices import Overfull, dual_prices

ENOUGH = 1e-9  # a relative gap that is rounding


class Infeasible(ValueError):
    """No choice fits. overrun: for each budget, what is missing of it where the least is missing in all."""

    def __init__(self, overrun: tuple[int, ...]) -> None:
        self.overrun = overrun
        super().__init__(f"nothing fits: at least {overrun} more is needed of each budget")


@dataclass(frozen=True, slots=True)
class Group:
    """cost: float64 [options], finite; size: int64 [options, budgets], not negative."""

    cost: Floats
    size: Ints


@dataclass(frozen=True, slots=True)
class Solution:
    """choices: int64 [groups], an option of each; no solution costs less than `bound`; prices: float64 [budgets], what
    one more unit of a budget would save, by the relaxed problem."""

    choices: Ints
    cost: float
    bound: float
    prices: Floats

    @property
    def gap(self) -> float:
        """How much of the cost could at most be saved, 0 .. 1."""
        return max(self.cost - self.bound, 0.0) / max(abs(self.cost), np.finfo(np.float64).tiny)


def solve(groups: Sequence[Group], budgets: Sequence[int]) -> Solution:
    """The best choice found, with a proof of how good it is. Equal input gives equal output.

    Raises Infeasible where nothing fits, ValueError where a group has no option or sizes do not match the budgets.
    """
    limits = np.asarray(budgets, dtype=np.int64).reshape(-1)
    _check(groups, len(limits))
    if not groups:
        return Solution(np.zeros(0, dtype=np.int64), 0.0, 0.0, np.zeros(len(limits)))
    most = sum((group.size.max(axis=0) for group in groups), np.zeros_like(limits))
    binding = most > limits  # a budget that nothing can exceed has no price, and is left out
    table = tabulate([Group(group.cost, group.size[:, binding]) for group in groups], limits[binding])
    try:
        choices, bound, prices = _solve(table)
    except Overfull as error:
        overrun = np.zeros_like(limits)
        overrun[binding] = error.overrun
        raise Infeasible(tuple(int(value) for value in overrun)) from None
    everywhere = np.zeros(len(limits))
    everywhere[binding] = prices
    original = table.original[np.arange(table.groups), choices]
    return Solution(original, table.total(choices), bound, everywhere)


def _solve(table: Options) -> tuple[Ints, float, Floats]:
    """Choices in the table, a lower bound of the cost, and prices; raises Overfull."""
    prices, bound = dual_prices(table)
    choices = repair(table, table.priced(prices).argmin(axis=1), prices)
    if table.overrun(choices).any():
        choices = least_overrun(table)
    fits = not table.overrun(choices).any()
    if fits:
        choices = improve(table, choices, prices)
        if table.total(choices) - bound <= ENOUGH * abs(bound):
            return choices, bound, prices
    found, complete = search(table, prices, bound, table.total(choices) if fits else np.inf)
    if found is None and not fits:
        raise Overfull(table.overrun(choices))
    choices = choices if found is None else found
    return choices, table.total(choices) if complete else bound, prices


def _check(groups: Sequence[Group], budgets: int) -> None:
    for number, group in enumerate(groups):
        if not len(group.cost):
            raise ValueError(f"group {number} has no option")
        if group.size.shape != (len(group.cost), budgets):
            raise ValueError(
                f"the sizes of group {number} are {group.size.shape}, not {len(group.cost)} options x {budgets} budgets"
            )
        if not np.isfinite(group.cost).all() or (group.size < 0).any():
            raise ValueError(f"group {number} has a cost that is not finite or a size below 0")
