"""Frontier: dynamic programming over the groups, in which states that cannot lead to a better choice are dropped."""

from dataclasses import dataclass

import numpy as np

from .links import Links, ahead, detours
from .options import Flags, Floats, Ints, Options, undominated

WORK = 1_000_000  # states x options that are looked at in all, about
COMPARED = 1024  # so many states are compared with one another where there is more than one budget
ROUGHLY = 4  # as many states as may be kept are compared with one another
BETTER = 1e-10  # relative

Found = tuple[Ints, Ints] | None  # a path, and the options on it


@dataclass(frozen=True, slots=True)
class States:
    """Choices of the first parts. cost: [states]; used: [states, budgets]; at: [states], where the last part lies."""

    cost: Floats
    used: Ints
    at: Ints

    def take(self, which: Ints | Flags) -> "States":
        return States(self.cost[which], self.used[which], self.at[which])


def search(links: Links, prices: Floats, bound: float, upper: float, work: int = WORK) -> tuple[Found, bool]:
    """(the path and the options there of the best choice that costs less than `upper`, None if none was found; whether
    all that could be better was looked at).

    With one budget no two states of equal use are kept, so where sizes have a common unit this is the exact dynamic
    programme over units. prices, bound: of the relaxed problem, with which options and states are ruled out.
    """
    core = _core(links, prices, upper - bound)
    several = _around(prices)
    costs_ahead = [ahead(core.least(price), core.hops) for price in several]
    smallest = _smallest_ahead(core)
    target = upper - BETTER * abs(upper) if np.isfinite(upper) else np.inf
    states = States(np.zeros(1), np.zeros((1, len(core.budgets)), dtype=np.int64), np.zeros(1, dtype=np.int64))
    steps: list[tuple[Ints, Ints, Ints]] = []
    complete = True
    for part in range(core.parts):
        grown, parent, option = _grow(states, core, part)
        fits = (grown.used + smallest[part + 1] <= core.budgets).all(axis=1)
        reach = np.where(fits, grown.cost, np.inf)
        kept = np.arange(len(reach))
        for price, costs in zip(several, costs_ahead, strict=True):
            room = (core.budgets - grown.used[kept]) @ price
            reach[kept] = np.maximum(reach[kept], grown.cost[kept] + costs[part, grown.at[kept]] - room)
            kept = kept[reach[kept] < target]
        width = max(work // (core.parts * _options(core, min(part + 1, core.parts - 1))), 1)
        if len(kept) > ROUGHLY * width:
            complete = False
            kept = np.sort(kept[np.argsort(reach[kept], kind="stable")[: ROUGHLY * width]])
        kept = kept[_distinct(grown.take(kept))]
        if len(kept) > width:
            complete = False
            kept = np.sort(kept[np.argsort(reach[kept], kind="stable")[:width]])
        states = grown.take(kept)
        steps.append((parent[kept], option[kept], states.at))
        if not len(kept):
            return None, complete
    return _trace_back(core, steps, int(states.cost.argmin())), complete


def narrowed(table: Options, prices: Floats, gap: float, choices: Ints) -> tuple[Options, Ints]:
    """(the table without the options that cost at least `gap` more than the best of their group, sizes priced, but with
    `choices`; where those are in it). No choice that is better by so much can hold one of them. The options' `original`
    are their numbers in the table."""
    priced = table.priced(prices)
    rows = np.arange(table.groups)
    kept = np.isfinite(table.cost) & (priced - priced.min(axis=1, keepdims=True) <= gap)
    kept[rows, choices] = True
    return table.keep(kept), kept.cumsum(axis=1)[rows, choices] - 1


def _core(links: Links, prices: Floats, gap: float) -> Links:
    """Without the options that make any way cost at least `gap` more than the best one, sizes priced."""
    table = links.table
    priced = table.priced(prices)
    least = priced.min(axis=1)
    more = detours(links.by_device(least), links.hops).reshape(-1, 1)
    kept = np.isfinite(table.cost) & (priced - np.where(np.isfinite(least), least, 0.0)[:, None] + more <= gap)
    return Links(table.keep(kept), links.hops)


def _around(prices: Floats) -> list[Floats]:
    """The prices and others near them: a state with much or little room left is bounded better by those."""
    found = [prices * factor for factor in (1.0, 0.0, 0.5, 2.0)]
    for number in range(len(prices)):
        for factor in (0.5, 2.0):
            one = prices.copy()
            one[number] *= factor
            found.append(one)
    return found if len(prices) > 1 else found[:4]


def _smallest_ahead(core: Links) -> Ints:
    """What the parts from each on take at least: [parts + 1, budgets]."""
    huge, budgets = np.iinfo(np.int64).max, len(core.budgets)
    sizes = np.where(np.isfinite(core.table.cost)[:, :, None], core.table.size, huge)
    least = sizes.reshape(core.parts, -1, budgets).min(axis=1)
    return np.concatenate((np.cumsum(least[::-1], axis=0)[::-1], np.zeros((1, budgets), dtype=np.int64)))


def _grow(states: States, core: Links, part: int) -> tuple[States, Ints, Ints]:
    """Each state with each option: the new states, and of each its old state and its option on its device."""
    devices = len(core.hops)
    rows = slice(part * devices, (part + 1) * devices)
    at, real = np.nonzero(np.isfinite(core.table.cost[rows]))
    hops = core.hops[states.at][:, at] if part else 0.0
    cost = (states.cost[:, None] + core.table.cost[rows][at, real] + hops).reshape(-1)
    used = (states.used[:, None, :] + core.table.size[rows][at, real]).reshape(len(cost), -1)
    parent = np.repeat(np.arange(len(states.cost)), len(real))
    return States(cost, used, np.tile(at, len(states.cost))), parent, np.tile(real, len(states.cost))


def _distinct(states: States) -> Ints:
    """Numbers of the states that no other on their device beats, or where they are too many to compare, that no other
    equals."""
    own = (np.flatnonzero(states.at == device) for device in np.unique(states.at))
    kept = [which[_unbeaten(states.cost[which], states.used[which])] for which in own]
    return np.sort(np.concatenate(kept)) if kept else np.zeros(0, dtype=np.int64)


def _unbeaten(cost: Floats, used: Ints) -> Ints:
    if used.shape[1] > 1 and len(cost) <= COMPARED:
        return undominated(cost, used)
    order = np.lexsort((cost, *used.T))
    if used.shape[1] == 1:
        least = np.minimum.accumulate(cost[order])
        return order[np.concatenate(([True], least[1:] < least[:-1]))]
    repeated = (used[order][1:] == used[order][:-1]).all(axis=1)
    return order[np.concatenate(([True], ~repeated))]


def _options(core: Links, part: int) -> int:
    """How many there are of a part."""
    devices = len(core.hops)
    return max(int(np.isfinite(core.table.cost[part * devices : (part + 1) * devices]).sum()), 1)


def _trace_back(core: Links, steps: list[tuple[Ints, Ints, Ints]], state: int) -> tuple[Ints, Ints]:
    path, choices = np.zeros(core.parts, dtype=np.int64), np.zeros(core.parts, dtype=np.int64)
    for part in range(core.parts - 1, -1, -1):
        parent, option, at = steps[part]
        path[part], choices[part] = at[state], option[state]
        state = int(parent[state])
    return path, core.table.original[core.rows(path), choices]
