"""Options: the groups of a knapsack as one table, without the options that another of their group beats."""

from collections.abc import Sequence
from dataclasses import dataclass
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
    number that each option has in its group; scale: [budgets], what sizes are divided by to be compared.
    """

    cost: Floats
    size: Ints
    budgets: Ints
    original: Ints
    scale: Floats

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
        priced: Floats = self.cost + self.size @ prices
        return priced

    def bound(self, prices: Floats) -> float:
        """No choice within the budgets costs less, at any prices that are not negative."""
        return float(self.priced(prices).min(axis=1).sum() - prices @ self.budgets)

    def keep(self, kept: Flags) -> "Options":
        """The options of `kept` [groups, options], at least one in each group, in their order."""
        length = int(kept.sum(axis=1).max())
        order = np.argsort(~kept, axis=1, kind="stable")[:, :length]
        rows = np.arange(self.groups)[:, None]
        cost = np.where(kept[rows, order], self.cost[rows, order], np.inf)
        return Options(cost, self.size[rows, order], self.budgets, self.original[rows, order], self.scale)


def tabulate(groups: Sequence[Costed], budgets: Ints) -> Options:
    """The undominated options of all groups."""
    kept = [undominated(group.cost, group.size) for group in groups]
    length = max(len(which) for which in kept)
    cost = np.full((len(groups), length), np.inf)
    size = np.zeros((len(groups), length, len(budgets)), dtype=np.int64)
    original = np.zeros((len(groups), length), dtype=np.int64)
    for number, (group, which) in enumerate(zip(groups, kept, strict=True)):
        cost[number, : len(which)] = group.cost[which]
        size[number, : len(which)] = group.size[which]
        original[number, : len(which)] = which
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
