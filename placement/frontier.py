"""Frontier: dynamic programming over the groups, in which states that cannot lead to a better choice are dropped."""

from dataclasses import dataclass

import numpy as np

from .options import Flags, Floats, Ints, Options, undominated

WORK = 1_000_000  # states x options that are looked at in all
COMPARED = 1024  # so many states are compared with one another where there is more than one budget
ROUGHLY = 4  # as many states as may be kept are compared with one another
BETTER = 1e-10  # relative


@dataclass(frozen=True, slots=True)
class States:
    """Choices of the first groups. cost: [states]; used: [states, budgets]."""

    cost: Floats
    used: Ints

    def take(self, which: Ints | Flags) -> "States":
        return States(self.cost[which], self.used[which])


def search(table: Options, prices: Floats, bound: float, upper: float) -> tuple[Ints | None, bool]:
    """(the best choice that costs less than `upper`, whether all that could be better was looked at).

    With one budget no two states of equal use are kept, so where sizes have a common unit this is the exact dynamic
    programme over units. prices, bound: of the relaxed problem, with which options and states are ruled out.
    """
    core = _core(table, prices, bound, upper)
    order = np.argsort(np.isfinite(core.cost).sum(axis=1), kind="stable")
    several = _around(prices)
    ahead = [_suffix(core, order, price) for price in several]
    smallest = _smallest_ahead(core, order)
    target = upper - BETTER * abs(upper) if np.isfinite(upper) else np.inf
    states = States(np.zeros(1), np.zeros((1, len(core.budgets)), dtype=np.int64))
    steps: list[tuple[Ints, Ints]] = []
    complete = True
    for step, group in enumerate(order):
        grown, parent, option = _grow(states, core, int(group))
        fits = (grown.used + smallest[step + 1] <= core.budgets).all(axis=1)
        reach = np.where(fits, grown.cost, np.inf)
        kept = np.arange(len(reach))
        for price, suffix in zip(several, ahead, strict=True):
            room = (core.budgets - grown.used[kept]) @ price
            reach[kept] = np.maximum(reach[kept], grown.cost[kept] + suffix[step + 1] - room)
            kept = kept[reach[kept] < target]
        width = _width(core, int(order[min(step + 1, len(order) - 1)]))
        if len(kept) > ROUGHLY * width:
            complete = False
            kept = np.sort(kept[np.argsort(reach[kept], kind="stable")[: ROUGHLY * width]])
        kept = kept[_distinct(grown.take(kept))]
        if len(kept) > width:
            complete = False
            kept = np.sort(kept[np.argsort(reach[kept], kind="stable")[:width]])
        states = grown.take(kept)
        steps.append((parent[kept], option[kept]))
        if not len(kept):
            return None, complete
    return _trace_back(core, order, steps, int(states.cost.argmin())), complete


def _core(table: Options, prices: Floats, bound: float, upper: float) -> Options:
    """Without the options that no choice better than `upper` can hold; each group keeps its best."""
    priced = table.priced(prices)
    loss = priced - priced.min(axis=1, keepdims=True)
    kept = np.isfinite(table.cost) & (loss <= upper - bound)
    return _numbered(table).keep(kept)


def _numbered(table: Options) -> Options:
    """The table whose options know where they stand in it."""
    numbers = np.broadcast_to(np.arange(table.cost.shape[1]), table.cost.shape)
    return Options(table.cost, table.size, table.budgets, numbers, table.scale)


def _around(prices: Floats) -> list[Floats]:
    """The prices and others near them: a state with much or little room left is bounded better by those."""
    found = [prices * factor for factor in (1.0, 0.0, 0.5, 2.0)]
    for number in range(len(prices)):
        for factor in (0.5, 2.0):
            one = prices.copy()
            one[number] *= factor
            found.append(one)
    return found if len(prices) > 1 else found[:4]


def _suffix(core: Options, order: Ints, prices: Floats) -> Floats:
    """The least priced cost of the groups from each step on: [groups + 1]."""
    least = core.priced(prices).min(axis=1)[order]
    return np.concatenate((np.cumsum(least[::-1])[::-1], [0.0]))


def _smallest_ahead(core: Options, order: Ints) -> Ints:
    """What the groups from each step on take at least: [groups + 1, budgets]."""
    huge = np.iinfo(np.int64).max
    least = np.where(np.isfinite(core.cost)[:, :, None], core.size, huge).min(axis=1)[order]
    return np.concatenate((np.cumsum(least[::-1], axis=0)[::-1], np.zeros((1, least.shape[1]), dtype=np.int64)))


def _grow(states: States, core: Options, group: int) -> tuple[States, Ints, Ints]:
    """Each state with each option: the new states, and of each its old state and its option."""
    real = np.flatnonzero(np.isfinite(core.cost[group]))
    cost = (states.cost[:, None] + core.cost[group, real]).reshape(-1)
    used = (states.used[:, None, :] + core.size[group, real]).reshape(len(cost), -1)
    parent = np.repeat(np.arange(len(states.cost)), len(real))
    return States(cost, used), parent, np.tile(real, len(states.cost))


def _distinct(states: States) -> Ints:
    """Numbers of the states that no other beats, or where they are too many to compare, that no other equals."""
    cost, used = states.cost, states.used
    if used.shape[1] == 1:
        order = np.lexsort((cost, used[:, 0]))
        least = np.minimum.accumulate(cost[order])
        return np.sort(order[np.concatenate(([True], least[1:] < least[:-1]))[: len(order)]])
    if len(cost) <= COMPARED:
        return undominated(cost, used)
    order = np.lexsort((cost, *used.T))
    repeated = np.concatenate(([False], (used[order][1:] == used[order][:-1]).all(axis=1)))
    return np.sort(order[~repeated])


def _width(core: Options, following: int) -> int:
    """How many states to keep before a group."""
    options = int(np.isfinite(core.cost[following]).sum())
    return max(WORK // (core.groups * options), 1)


def _trace_back(core: Options, order: Ints, steps: list[tuple[Ints, Ints]], state: int) -> Ints:
    choices = np.zeros(core.groups, dtype=np.int64)
    for group, (parent, option) in zip(order[::-1], steps[::-1], strict=True):
        choices[group] = core.original[group, option[state]]
        state = int(parent[state])
    return choices
