"""Starts: paths for a row of parts, and options on them, from which a choice that fits is made."""

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from .dual import Dual
from .links import Links, shortest_path
from .options import Floats, Ints

FACTORS = (0.0, 0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0)  # of the prices that paths are sought for
MIXED = 4  # choices that the relaxed problem mixes, of which each is given a run of parts
SHIFTED = 8  # parts by which one of two such runs may be longer or shorter

Start = tuple[float, Ints, Ints]


def starts(links: Links, dual: Dual) -> list[Start]:
    """What each path costs at least, the path, and the option of each part there; the lowest first. Paths that are too
    large even with the smallest options are left out."""
    around = list(_around(dual.prices))
    leasts = np.array([links.least(prices) for prices in around])
    options = links.by_device(links.table.priced(dual.prices).argmin(axis=1))
    parts = np.arange(links.parts)
    found = list(_mixed(dual, links.parts))
    found += [path * links.width + options[parts, path] for path in shortest_path(leasts, links.hops)]
    paths, choices = np.divmod(np.array(found), links.width)
    first = np.sort(np.unique(paths, axis=0, return_index=True)[1])
    first = first[_fitting(links, paths[first])]
    rents = np.array([prices @ links.budgets for prices in around])
    floors = (leasts[:, parts, paths[first]].sum(axis=2) - rents[:, None]).max(axis=0)
    floors += links.hops[paths[first, :-1], paths[first, 1:]].sum(axis=1)
    order = np.argsort(floors, kind="stable")
    return [(float(floors[each]), paths[first[each]], choices[first[each]]) for each in order]


def _mixed(dual: Dual, parts: int) -> Iterator[Ints]:
    """The choices that the relaxed problem mixes, in turns: each has a run of parts as long as its share, or of two one
    a little more; and each for itself."""
    order = np.argsort(-dual.shares, kind="stable")[:MIXED]
    order = order[dual.shares[order] > 0]
    for count in range(len(order), 0, -1):
        for turn in permutations(order, count):
            chosen, shares = np.array([dual.columns[number].choices for number in turn]), dual.shares[list(turn)]
            ends = np.cumsum(shares)[:-1] / shares.sum() * parts
            for shift in range(-SHIFTED, SHIFTED + 1) if count == 2 else (0,):
                whose = np.searchsorted(ends + shift, np.arange(parts) + 0.5)
                yield chosen[whose, np.arange(parts)]


def _fitting(links: Links, paths: Ints) -> Ints:
    """The numbers of the paths on which no budget by itself is exceeded by the smallest options."""
    real = np.isfinite(links.table.cost)[None]
    smallest = np.where(real, links.table.weight, np.inf).min(axis=2)
    return np.flatnonzero((smallest[:, links.rows(paths)].sum(axis=2) <= links.budgets[:, None]).all(axis=0))


def _around(prices: Floats) -> Iterator[Floats]:
    """Prices, higher and lower ones, all together and one by one."""
    for factor in FACTORS:
        yield prices * factor
        for number in range(len(prices) if len(prices) > 1 else 0):
            one = prices.copy()
            one[number] *= factor
            yield one
