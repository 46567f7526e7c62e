"""Links: parts in a row, of which neighbours on different devices cost a hop; priced, it is a shortest path."""

from dataclasses import dataclass

import numpy as np

from .dual import Column
from .options import Floats, Ints, Options

NO_HOPS = np.zeros((1, 1))  # of one device: a plain knapsack


@dataclass(frozen=True, slots=True)
class Links:
    """table: for each part in turn, and for each device, a group of the options that the part has there. hops: float64
    [devices, devices], what it costs that a part and the next one lie here and there."""

    table: Options
    hops: Floats

    @property
    def budgets(self) -> Ints:
        return self.table.budgets

    @property
    def scale(self) -> Floats:
        return self.table.scale

    @property
    def parts(self) -> int:
        return self.table.groups // len(self.hops)

    @property
    def width(self) -> int:
        """Options of a group."""
        return int(self.table.cost.shape[1])

    def rows(self, path: Ints) -> Ints:
        """The groups of a path, int64 [..., parts], which is the device of each part."""
        return np.arange(path.shape[-1]) * len(self.hops) + path

    def hops_of(self, path: Ints) -> float:
        return float(self.hops[path[:-1], path[1:]].sum())

    def on_path(self, path: Ints) -> Options:
        """What is left to choose from."""
        return self.table.take(self.rows(path))

    def least(self, prices: Floats) -> Floats:
        """What each part costs at least on each device, sizes priced: float64 [parts, devices]."""
        return self.by_device(self.table.priced(prices).min(axis=1))

    def by_device(self, values: Floats) -> Floats:
        """Of the groups, as [parts, devices]."""
        return values.reshape(-1, len(self.hops))

    def cheapest(self, prices: Floats) -> Column:
        """Its choices are the option of each part on its device, that times `width` added."""
        return self._column(self.table.priced(prices), self.hops)

    def smallest(self, prices: Floats) -> Column:
        weighed = np.where(np.isfinite(self.table.cost), self.table.weighed(prices), np.inf)
        return self._column(weighed, np.zeros_like(self.hops))

    def _column(self, priced: Floats, hops: Floats) -> Column:
        options = priced.argmin(axis=1)
        path = shortest_path(self.by_device(priced[np.arange(len(options)), options]), hops)
        rows = self.rows(path)
        chosen = options[rows]
        used = self.table.size[rows, chosen].sum(axis=0).astype(np.float64)
        cost = float(self.table.cost[rows, chosen].sum()) + self.hops_of(path)
        return Column(cost, used, path * self.width + chosen)


def shortest_path(here: Floats, hops: Floats) -> Ints:
    """int64 [..., parts]: the device of each part on the cheapest way; here: float64 [..., parts, devices]."""
    onward = here + ahead(here, hops)
    path: Ints = onward.argmin(axis=-1)
    for part in range(1, path.shape[-1]):
        path[..., part] = (onward[..., part, :] + hops[path[..., part - 1]]).argmin(axis=-1)
    return path


def ahead(here: Floats, hops: Floats) -> Floats:
    """As `here`: what is still to come after a part that lies on a device, on the cheapest way."""
    after = np.zeros_like(here)
    for part in range(here.shape[-2] - 1, 0, -1):
        onward = here[..., part, :] + after[..., part, :]
        after[..., part - 1, :] = (onward[..., None, :] + hops).min(axis=-1)
    return after


def detours(here: Floats, hops: Floats) -> Floats:
    """float64 [parts, devices]: what the cheapest way by a part's device costs more than the cheapest way."""
    through = here + ahead(here, hops) + ahead(here[::-1], hops.T)[::-1]
    more: Floats = through - through[0].min()
    return more
