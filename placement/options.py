"""Options: the groups of a knapsack as one table, without the options that another of their group beats."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Costed(Protocol):
    """What a group has. cost: [options]; size: [options, budgets]."""

    @property
    def cost(self) -> Floats: ...

    @property
    def size(self) -> Ints: ...


@dataclass(frozen=True, slots=True)
class Options:
    """Groups of one length, padded by options that cost infinity.

    cost: [groups, options]; size: [groups, options, budgets]; budgets: [budgets]; original: [groups, options], the
    number that each option has where it was taken from; scale: [budgets], what sizes are divided by to be compared.
    weight: [budgets, groups, options], the sizes as they are priced.
    """

    cost: Floats
    size: Ints
    budgets: Ints
    original: Ints
    scale: Floats
    weight: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        weight = np.ascontiguousarray(np.moveaxis(self.size, 2, 0), dtype=np.float64)
        object.__setattr__(self, "weight", weight)

    @property
    def groups(self) -> int:
        return len(self.cost)

    def used(self, choices: Ints) -> Ints:
        """Of each budget: int64 [budgets]."""
        used: Ints = self.size[np.arange(self.groups), choices].sum(axis=0)
        return used

    def total(self, choices: Ints) -> float:
        return float(self.cost[np.arange(self.groups), choices].sum())

    def overrun(self, choices: Ints) -> Ints:
        """How much of each budget is missing: int64 [budgets]."""
        missing: Ints = np.maximum(self.used(choices) - self.budgets, 0)
        return missing

    def priced(self, prices: Floats) -> Floats:
        """Cost plus the price of what is used: float64 [groups, options]."""
        return self.cost + self.weighed(prices)

    def weighed(self, prices: Floats) -> Floats:
        """The price of what is used: float64 [groups, options]."""
        total = np.zeros(self.cost.shape)
        for price, weight in zip(prices, self.weight, strict=True):
            if price:
                total += price * weight
        return total

    def bound(self, prices: Floats) -> float:
        """No choice within the budgets costs less, at any prices that are not negative."""
        return float(self.priced(prices).min(axis=1).sum() - prices @ self.budgets)

    def take(self, rows: Ints) -> "Options":
        """Of some groups."""
        return Options(self.cost[rows], self.size[rows], self.budgets, self.original[rows], self.scale)

    def keep(self, kept: Flags) -> "Options":
        """The options of `kept` [groups, options], in their order; `original` is then their number in this table."""
        length = max(int(kept.sum(axis=1).max()), 1)
        order = np.argsort(~kept, axis=1, kind="stable")[:, :length]
        rows = np.arange(self.groups)[:, None]
        cost = np.where(kept[rows, order], self.cost[rows, order], np.inf)
        return Options(cost, self.size[rows, order], self.budgets, order, self.scale)


def tabulate(groups: Sequence[Costed], budgets: Ints, kept: Sequence[Ints] | None = None) -> Options:
    """All groups. kept: numbers of the options of each that are taken, all if not given."""
    which = [np.arange(len(group.cost)) for group in groups] if kept is None else kept
    length = max(1, *(len(each) for each in which))
    cost = np.full((len(groups), length), np.inf)
    size = np.zeros((len(groups), length, len(budgets)), dtype=np.int64)
    original = np.zeros((len(groups), length), dtype=np.int64)
    for number, (group, each) in enumerate(zip(groups, which, strict=True)):
        cost[number, : len(each)] = group.cost[each]
        size[number, : len(each)] = group.size[each]
        original[number, : len(each)] = each
    largest = size.max(axis=1).sum(axis=0)
    return Options(cost, size, budgets, original, np.maximum(np.minimum(budgets, largest), 1).astype(np.float64))


def undominated(cost: Floats, size: Ints) -> Ints:
    """Numbers of the options that no other beats or equals in cost and in each size; of equal ones the first."""
    order = np.lexsort((*size.T[::-1], cost))
    beaten = np.ones((len(order), len(order)), dtype=np.bool_)
    for column in size[order].T:
        # Ranks are compared several times faster than sizes.
        ranks = np.unique(column, return_inverse=True)[1]
        small = ranks.astype(np.int16) if len(ranks) < 1 << 15 else ranks
        beaten &= small[:, None] <= small[None, :]
    return np.sort(order[~np.triu(beaten, 1).any(axis=0)])
