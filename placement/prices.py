"""Prices: the dual of the relaxed knapsack: what one unit of each budget is worth, and a bound of the cost."""

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from .exchange import least_overrun
from .options import Flags, Floats, Ints, Options

ROUNDS = 100  # the columns of the relaxed problem are all found in far fewer
FEW = 4000  # so many options are given to the relaxed problem at once
CLOSE = 1e-6  # relative, of the relaxed problem's value to the bound


class Overfull(Exception):
    """overrun: int64 [budgets], the least that is missing."""

    def __init__(self, overrun: Ints) -> None:
        self.overrun = overrun
        super().__init__("nothing fits")


def dual_prices(table: Options) -> tuple[Floats, float]:
    """(prices [budgets], bound): the prices at which the bound is greatest, and that bound.

    Raises Overfull where not even shares of options would fit.
    """
    budgets = len(table.budgets)
    free = np.zeros(budgets)
    if not table.overrun(table.cost.argmin(axis=1)).any():
        return free, table.bound(free)
    return _one_price(table) if budgets == 1 else _several_prices(table)


def _one_price(table: Options) -> tuple[Floats, float]:
    """The bound is concave in the price: cut the lines of a choice too large and of one that fits, until no choice
    lies below where they meet. Each round finds a corner of the bound, so it ends exactly."""
    size = table.size[:, :, 0]
    small = np.where(np.isfinite(table.cost), size, np.iinfo(np.int64).max).min(axis=1, keepdims=True)
    fits = np.where(size == small, table.cost, np.inf).argmin(axis=1)
    over = table.cost.argmin(axis=1)
    if table.overrun(fits).any():
        raise Overfull(table.overrun(fits))
    while True:
        price = (table.total(fits) - table.total(over)) / float((table.used(over) - table.used(fits))[0])
        prices = np.array([max(price, 0.0)])
        met = table.total(fits) + price * float(table.used(fits)[0] - table.budgets[0])
        bound = table.bound(prices)
        between = table.priced(prices).argmin(axis=1)
        used = table.used(between)[0]
        if bound >= met - CLOSE * abs(met) or used in (table.used(over)[0], table.used(fits)[0]):
            return prices, bound
        if used > table.budgets[0]:
            over = between
        else:
            fits = between


def _several_prices(table: Options) -> tuple[Floats, float]:
    """By generating columns: solve the relaxed problem of few options, and add those that its prices favour."""
    active = _first_columns(table)
    if not _fits_in_shares(table, active):
        raise Overfull(table.overrun(least_overrun(table)))
    best, bound = np.zeros(len(table.budgets)), -np.inf
    for _ in range(ROUNDS):
        value, prices = _relaxed(table, active, table.cost)
        # Prices swing at first: halfway to the best so far is asked too.
        for asked in (prices, (prices + best) / 2):
            reached = table.bound(asked)
            if reached > bound:
                best, bound = asked, reached
            _activate(active, table.priced(asked))
        if value - bound <= CLOSE * max(abs(value), abs(bound)):
            break
    return best, bound


def _first_columns(table: Options) -> Flags:
    """Options to begin with: all where they are few, else what a range of prices favours."""
    real = np.isfinite(table.cost)
    if np.count_nonzero(real) <= FEW:
        return real
    active = np.zeros_like(real)
    spread = float((np.where(real, table.cost, -np.inf).max(axis=1) - table.cost.min(axis=1)).sum())
    directions = np.vstack((np.eye(len(table.budgets)), np.ones(len(table.budgets)))) / table.scale
    for direction in directions:
        for power in range(-8, 9):
            _activate(active, table.priced(direction * spread * 2.0**power))
        _activate(active, np.where(real, table.size @ direction, np.inf))
    return active


def _activate(active: Flags, priced: Floats) -> None:
    active[np.arange(len(active)), priced.argmin(axis=1)] = True


def _fits_in_shares(table: Options, active: Flags) -> bool:
    """Whether shares of options fit; adds the columns that it takes."""
    nothing = np.where(np.isfinite(table.cost), 0.0, np.inf)
    for _ in range(ROUNDS):
        missing, prices = _relaxed(table, active, nothing, elastic=True)
        if missing <= CLOSE:
            return True
        before = np.count_nonzero(active)
        _activate(active, nothing + table.size @ prices)
        if np.count_nonzero(active) == before:
            return False
    return False


def _relaxed(table: Options, active: Flags, cost: Floats, elastic: bool = False) -> tuple[float, Floats]:
    """(value, prices) of the problem in which shares of the active options may be chosen. elastic: budgets may be
    exceeded at a cost of 1 for each `scale`."""
    group, option = np.nonzero(active)
    extra = len(table.budgets) if elastic else 0
    one = coo_array((np.ones(len(group)), (group, np.arange(len(group)))), shape=(table.groups, len(group) + extra))
    size = np.hstack((table.size[group, option].T / table.scale[:, None], -np.eye(len(table.budgets))[:, :extra]))
    result = linprog(
        np.concatenate((cost[group, option], np.ones(extra))),
        A_ub=size,
        b_ub=table.budgets / table.scale,
        A_eq=one.tocsr(),
        b_eq=np.ones(table.groups),
        method="highs-ds",
    )
    if result.status != 0:
        raise ArithmeticError(f"the relaxed knapsack was not solved: {result.message}")
    return float(result.fun), np.maximum(-result.ineqlin.marginals, 0.0) / table.scale
