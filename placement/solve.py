"""Solve: one option of each group at the least cost within all budgets (a multiple-choice knapsack)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .assign import Effort, assign
from .exchange import least_overrun
from .links import NO_HOPS, Links
from .options import Flags, Floats, Ints, tabulate, undominated

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
    binds = binding(groups, limits)
    bound_by = [Group(group.cost, group.size[:, binds]) for group in groups]
    table = tabulate(bound_by, limits[binds], [undominated(group.cost, group.size) for group in bound_by])
    fewest = np.argsort(np.isfinite(table.cost).sum(axis=1), kind="stable")  # first, so that states are few for long
    answer = assign(Links(table.take(fewest), NO_HOPS), Effort(ENOUGH, ENOUGH))
    if answer.best is None:
        overrun = np.zeros_like(limits)
        overrun[binds] = table.overrun(least_overrun(table))
        raise Infeasible(tuple(int(value) for value in overrun))
    prices = np.zeros(len(limits))
    prices[binds] = answer.prices
    choices = np.zeros(len(groups), dtype=np.int64)
    choices[fewest] = table.original[fewest, answer.best.choices]
    return Solution(choices, answer.best.cost, answer.bound, prices)


def binding(groups: Sequence[Group], budgets: Ints) -> Flags:
    """[budgets]: which can be exceeded at all. One that can not has no price, and is left out."""
    most = sum((group.size.max(axis=0) for group in groups), np.zeros_like(budgets))
    return np.asarray(most > budgets)


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
