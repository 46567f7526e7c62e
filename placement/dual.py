"""Dual: prices of the budgets at which the bound of a problem is greatest, found by generating columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.optimize import linprog

from .options import Floats, Ints

ROUNDS = 200  # the columns that matter are found in fewer
CLOSE = 1e-6  # relative, of the relaxed problem's value to the bound


@dataclass(frozen=True, slots=True)
class Column:
    """A choice of the whole problem, whether it fits or not. used: float64 [budgets]; choices: what it consists of."""

    cost: float
    used: Floats
    choices: Ints


class Problem(Protocol):
    """budgets: [budgets]; scale: [budgets], what sizes are divided by to be compared."""

    @property
    def budgets(self) -> Ints: ...

    @property
    def scale(self) -> Floats: ...

    def cheapest(self, prices: Floats) -> Column:
        """The choice of the least cost with sizes priced."""

    def smallest(self, prices: Floats) -> Column:
        """The choice of the least priced size, whatever it costs."""


@dataclass(frozen=True, slots=True)
class Dual:
    """No choice that fits costs less than `bound`. columns: those that were found; shares: float64 [columns], how much
    of each the relaxed problem takes, which may mix them."""

    prices: Floats
    bound: float
    columns: Sequence[Column]
    shares: Floats


def highest_bound(problem: Problem, start: Sequence[Floats]) -> Dual | None:
    """start: prices to begin with, any. None where not even a mixture of choices fits."""
    budgets, scale = problem.budgets, problem.scale
    free = problem.cheapest(np.zeros(len(budgets)))
    if (free.used <= budgets).all():
        return Dual(np.zeros(len(budgets)), free.cost, [free], np.ones(1))
    columns = [problem.cheapest(prices) for prices in start]
    bounds = [_bound(problem, prices, column) for prices, column in zip(start, columns, strict=True)]
    if not _mixture(problem, columns):
        return None
    best = start[int(np.argmax(bounds))] if bounds else np.zeros(len(budgets))
    bound = max(bounds, default=-np.inf)
    for _ in range(ROUNDS):
        value, prices, shares = _relaxed(columns, [column.cost for column in columns], budgets, scale)
        mixed = columns
        if value - bound <= CLOSE * max(abs(value), abs(bound)):
            break
        columns = list(columns)
        # Prices swing at first: halfway to the best so far is asked too.
        for asked in (prices, (prices + best) / 2):
            column = problem.cheapest(asked)
            columns.append(column)
            reached = _bound(problem, asked, column)
            if reached > bound:
                best, bound = asked, reached
    return Dual(best, bound, mixed, shares)


def _bound(problem: Problem, prices: Floats, column: Column) -> float:
    return column.cost + float(prices @ (column.used - problem.budgets))


def _mixture(problem: Problem, columns: list[Column]) -> bool:
    """Whether a mixture of choices fits; adds the columns that it takes."""
    budgets, scale = problem.budgets, problem.scale
    for direction in (np.ones(len(budgets)), *np.eye(len(budgets))):
        columns.append(problem.smallest(direction / scale))
    for _ in range(ROUNDS):
        missing, prices, _ = _relaxed(columns, [0.0] * len(columns), budgets, scale, elastic=True)
        if missing <= CLOSE:
            return True
        column = problem.smallest(prices)
        if float(prices @ (column.used - budgets)) >= missing * (1 - CLOSE):
            return False
        columns.append(column)
    return False


def _relaxed(
    columns: Sequence[Column], cost: Sequence[float], budgets: Ints, scale: Floats, elastic: bool = False
) -> tuple[float, Floats, Floats]:
    """(value, prices, shares) of the problem in which columns may be mixed. elastic: budgets may be exceeded at a cost
    of 1 for each `scale`."""
    extra = len(budgets) if elastic else 0
    used = np.array([column.used for column in columns]).reshape(len(columns), len(budgets))
    result = linprog(
        np.concatenate((cost, np.ones(extra))),
        A_ub=np.hstack(((used / scale).T, -np.eye(len(budgets))[:, :extra])),
        b_ub=budgets / scale,
        A_eq=np.concatenate((np.ones(len(columns)), np.zeros(extra)))[None],
        b_eq=np.ones(1),
        method="highs-ds",
    )
    if result.status != 0:
        raise ArithmeticError(f"the relaxed problem was not solved: {result.message}")
    prices = np.maximum(-result.ineqlin.marginals, 0.0) / scale
    return float(result.fun), prices, result.x[: len(columns)]
