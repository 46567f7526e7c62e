"""Exchange: a choice made to fit its budgets, and made better by exchanging one or two options at a time."""

import numpy as np

from .options import Floats, Ints, Options

PAIRS = 600  # moves that are tried in pairs
AT_ONCE = 8  # so many rounds take a move in every group
LOOKED_AT = 20_000  # to find so many that differ
BETTER = 1e-7  # relative gain below which a move is not worth its time; the search that follows finds the rest


def repair(table: Options, choices: Ints, prices: Floats) -> Ints:
    """Moves to smaller options, least loss for each unit of overrun first, until all fits or no move helps."""
    choices = choices.copy()
    rows = np.arange(table.groups)
    priced = table.priced(prices)
    floor = 1e-12 * (np.abs(table.cost.min(axis=1)).sum() + 1.0)
    over = _missing(table.used(choices) - table.budgets)
    while over > 0:
        used = table.used(choices) - table.size[rows, choices][:, None, :] + table.size
        gained = over - _missing(used - table.budgets)
        loss = np.maximum(priced - priced[rows, choices][:, None], 0.0) + floor
        rate = np.where((gained > 0) & np.isfinite(priced), loss / np.where(gained > 0, gained, 1.0), np.inf)
        least = rate.min(axis=1)
        # Some groups at a time: where all are alike, one by one would take long.
        for group in np.argsort(least, kind="stable")[: 1 + table.groups // AT_ONCE]:
            if over <= 0 or not np.isfinite(least[group]):
                break
            before, choices[group] = choices[group], rate[group].argmin()
            left = _missing(table.used(choices) - table.budgets)
            if left < over:
                over = left
            else:
                choices[group] = before
        if not np.isfinite(least).any():
            break
    return choices


def least_overrun(table: Options) -> Ints:
    """The choice that exceeds its budgets by the least found, exactly the least with one budget."""
    real = np.isfinite(table.cost)
    budgets = len(table.budgets)
    best: Ints | None = None
    # Small in all budgets alike, and in each above the others: where one is short, the others may have room.
    for direction in np.vstack((np.ones(budgets), np.eye(budgets) + 1e-3)) / table.scale:
        start = np.where(real, table.size @ direction, np.inf).argmin(axis=1)
        choices = repair(table, start, np.zeros(budgets))
        if best is None or table.overrun(choices).sum() < table.overrun(best).sum():
            best = choices
    assert best is not None
    return best


def improve(table: Options, choices: Ints, prices: Floats) -> Ints:
    """Makes the best move that fits, of one option or else of two, until there is none."""
    choices = choices.copy()
    while _move_one(table, choices) or _move_two(table, choices, prices):
        pass
    return choices


def _move_one(table: Options, choices: Ints) -> bool:
    rows = np.arange(table.groups)
    room = table.budgets - table.used(choices) + table.size[rows, choices]
    fits = (table.size <= room[:, None, :]).all(axis=2)
    change = np.where(fits, table.cost - table.cost[rows, choices][:, None], np.inf)
    group, option = np.unravel_index(int(change.argmin()), change.shape)
    if change[group, option] >= -BETTER * abs(table.total(choices)):
        return False
    choices[group] = option
    return True


def _move_two(table: Options, choices: Ints, prices: Floats) -> bool:
    """Of the moves that lose least by the prices, the best pair in two groups."""
    rows = np.arange(table.groups)
    priced = table.priced(prices)
    loss = priced - priced[rows, choices][:, None]
    loss[rows, choices] = np.inf
    count = min(LOOKED_AT, int(np.isfinite(loss).sum()))
    if count < 2:
        return False
    group, option = np.unravel_index(np.argsort(loss, axis=None, kind="stable")[:count], loss.shape)
    change = table.cost[group, option] - table.cost[group, choices[group]]
    grown = table.size[group, option] - table.size[group, choices[group]]
    which = _unlike(change, grown)[:PAIRS]
    group, option, change, grown = group[which], option[which], change[which], grown[which]
    both = change[:, None] + change[None, :]
    allowed = group[:, None] != group[None, :]
    for column, room in zip(grown.T, table.budgets - table.used(choices), strict=True):
        allowed &= column[:, None] + column[None, :] <= room
    both = np.where(allowed, both, np.inf)
    if both.min() >= -BETTER * abs(table.total(choices)):
        return False
    first, second = np.unravel_index(int(both.argmin()), both.shape)
    choices[group[first]] = option[first]
    choices[group[second]] = option[second]
    return True


def _unlike(change: Floats, grown: Ints) -> Ints:
    """The numbers of the moves, in order, without those that two earlier ones equal: groups may be alike."""
    order = np.lexsort((change, *grown.T))
    alike = (change[order][2:] == change[order][:-2]) & (grown[order][2:] == grown[order][:-2]).all(axis=1)
    return np.sort(order[np.concatenate(([True, True], ~alike))])


def _missing(excess: Ints) -> Floats:
    """What is missing of all budgets together."""
    return np.asarray(np.maximum(excess, 0).sum(axis=-1), dtype=np.float64)
