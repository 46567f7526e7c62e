"""Assign: a device and an option for each part of a row, as cheap as can be found, and a bound of what there is."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .dual import highest_bound
from .exchange import improve, repair
from .frontier import WORK, narrowed, search
from .links import NO_HOPS, Links
from .options import Floats, Ints, Options
from .starts import starts

POWERS = range(-12, 5, 2)  # of 2: prices to begin with, of the steepest that there can be
NEAR = (1.0, 0.7, 1.4)  # times known prices, to begin with
TRIED = 6  # starts, those that may cost least


@dataclass(frozen=True, slots=True)
class Assigned:
    """path: the device of each part; choices: its option there."""

    path: Ints
    choices: Ints
    cost: float


@dataclass(frozen=True, slots=True)
class Known:
    """Of a choice that fits: its cost, and prices that are about right."""

    cost: float
    prices: Floats


@dataclass(frozen=True, slots=True)
class Answer:
    """best: None where nothing was found that fits, or costs less than what was known. No choice costs less than
    `bound`. prices: [budgets], what the relaxed problem pays for one more unit."""

    best: Assigned | None
    bound: float
    prices: Floats


@dataclass(frozen=True, slots=True)
class Effort:
    """Relative gaps that are not worth the time to close: by another start; by a search. work: of a search, as in
    `search`."""

    enough: float
    searched: float
    work: int = WORK


def assign(links: Links, effort: Effort, known: Known | None = None) -> Answer:
    """known: kept where it is nearly as good as anything can be, else improved on."""
    prices = list(_spread(links.table)) if known is None else [known.prices * factor for factor in NEAR]
    dual = highest_bound(links, prices)
    if dual is None:
        return Answer(None, np.inf, np.zeros(len(links.budgets)))
    best, bound = None, dual.bound
    below, target = np.inf if known is None else known.cost, bound + effort.searched * abs(bound)
    if below > target:
        for floor, path, choices in starts(links, dual)[:TRIED]:
            if below <= floor + effort.enough * abs(floor):
                break
            best = _better(best, _filled(links, path, choices, dual.prices), below)
            below = below if best is None else best.cost
    if below > target and best is not None and len(links.hops) > 1:
        best = _better(best, _searched(links, best, dual.prices, effort.work), below) or best
        below = best.cost
    if below > target:
        found, complete = search(links, dual.prices, bound, below, effort.work)
        best = _better(best, None if found is None else _assigned(links, *found), below)
        below = below if best is None else best.cost
        bound = below if complete else bound
    return Answer(best, bound, dual.prices)


def _spread(table: Options) -> Iterator[Floats]:
    """A range of prices to begin with, of each budget alone and of all."""
    costs = table.cost[np.isfinite(table.cost)]
    spread = float(costs.max() - costs.min()) * table.groups
    for direction in np.vstack((np.eye(len(table.budgets)), np.ones(len(table.budgets)))) / table.scale:
        for power in POWERS:
            yield direction * spread * 2.0**power


def _better(best: Assigned | None, found: Assigned | None, below: float) -> Assigned | None:
    return found if found is not None and found.cost < below else best


def _assigned(links: Links, path: Ints, choices: Ints) -> Assigned:
    cost = links.table.cost[links.rows(path), choices].sum() + links.hops_of(path)
    return Assigned(path, choices, float(cost))


def _filled(links: Links, path: Ints, choices: Ints, prices: Floats) -> Assigned | None:
    """The options on a path made to fit, and better by exchange."""
    table = links.on_path(path)
    choices = repair(table, choices, prices)
    if table.overrun(choices).any():
        return None
    gap = table.total(choices) - table.bound(prices)
    core, there = narrowed(table, prices, gap, choices)
    improved = core.original[np.arange(core.groups), improve(core, there, prices)]
    return _assigned(links, path, improved)


def _searched(links: Links, known: Assigned, prices: Floats, work: int) -> Assigned | None:
    """What is better on the same path."""
    below = known.cost - links.hops_of(known.path)
    own = Links(links.on_path(known.path), NO_HOPS)
    found, _ = search(own, prices, own.table.bound(prices), below, work)
    return None if found is None else _assigned(links, known.path, found[1])
