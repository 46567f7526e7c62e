"""Menu: the ways in which one part of a model can lie on a machine, with what each costs and takes of the budgets."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from .cost import CostModel
from .options import Flags, Floats, Ints
from .placed import Traffic
from .shape import CPU, LayerShape
from .touch import hottest

PARTS = 16  # experts that are read from disk, or have slots, come in so many parts
SPLIT = 4  # and those that are split between two accelerators
FULL_CURVE = 1024  # options of a layer up to which each number of experts is one
NO_EXPERT = np.zeros(1, dtype=np.int64)  # the count of a way without any on an accelerator


@dataclass(frozen=True, slots=True)
class Task:
    """budgets: bytes of each accelerator and last of the host, so that CPU is the index of the latter. curves: those
    that were asked for, of all devices of the dense part, by layer and devices of the experts."""

    cost: CostModel
    traffic: Traffic
    budgets: tuple[int, ...]
    kv_positions: int
    curves: dict[int, dict[tuple[int, int], Floats]] = field(default_factory=dict, repr=False)

    @property
    def cards(self) -> range:
        return range(len(self.budgets) - 1)

    @property
    def devices(self) -> tuple[int, ...]:
        return (CPU, *self.cards)

    def curve(self, number: int, way: "Way") -> Floats:
        """float64 [experts + 1]: the time of a layer with 0 .. all of its hottest experts on the way's device."""
        if number not in self.curves:
            pairs = [*((card, CPU) for card in self.cards), *permutations(self.cards, 2)] or [(CPU, CPU)]
            self.curves[number] = self.cost.expert_curves(number, self.devices, pairs, self.traffic)
        device = 0 if self.cards and way.device == CPU else way.device  # with none there, it is the same
        curve: Floats = self.curves[number][device, way.rest][self.devices.index(way.dense)]
        return curve


@dataclass(frozen=True, slots=True)
class Menu:
    """Options of one part. cost: ms; size: int64 [options, budgets], bytes; dense: the device of the dense part.

    Of the experts, hottest first: `hot` on the device `first`, `warm` on `second`, the others on the CPU, of which the
    last `disk` are read from disk. slots: how many of the `hot` make way for recently used ones; moved: bytes that a
    step brings into those.
    """

    cost: Floats
    size: Ints
    dense: Ints
    first: Ints
    hot: Ints
    second: Ints
    warm: Ints
    disk: Ints
    slots: Ints
    moved: Ints

    def take(self, which: Flags | Ints) -> "Menu":
        return Menu(*(getattr(self, field.name)[which] for field in fields(self)))

    @staticmethod
    def join(menus: Iterable["Menu"]) -> "Menu":
        parts = list(menus)
        return Menu(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Menu)))


def menu_of(task: Task, layer: LayerShape, cost: Sequence[float] | Floats, dense: int, **counts: int | Ints) -> Menu:
    """Options of a layer that differ in `counts`: first, hot, second and so on, 0 or CPU if not given."""
    given = {"first": CPU, "hot": 0, "second": CPU, "warm": 0, "disk": 0, "slots": 0, "moved": 0} | counts
    columns = {name: np.broadcast_to(np.asarray(value, np.int64), (len(cost),)) for name, value in given.items()}
    rows = np.arange(len(cost))
    size = np.zeros((len(cost), len(task.budgets)), dtype=np.int64)
    size[:, dense] += layer.dense_bytes + layer.kv_bytes * task.kv_positions
    size[rows, columns["first"]] += columns["hot"] * layer.expert_bytes
    size[rows, columns["second"]] += columns["warm"] * layer.expert_bytes
    here = layer.num_experts - columns["hot"] - columns["warm"] - columns["disk"]
    size[:, CPU] += here * layer.expert_bytes
    return Menu(np.asarray(cost, np.float64), size, np.full(len(cost), dense, np.int64), **columns)


@dataclass(frozen=True, slots=True)
class Way:
    """A layer with its dense part on a device, each of `counts` of its hottest experts on another, those left on
    `rest`."""

    dense: int
    device: int
    rest: int
    counts: Ints


def layer_ways(task: Task, layer: LayerShape, *, few: bool) -> list[Way]:
    """Its dense part anywhere, its hottest experts on one accelerator, or all of them on two. few: not every number of
    experts."""
    counts, parts = np.arange(1, layer.num_experts + 1), coarse(layer.num_experts, SPLIT)[:-1]
    if few or len(counts) * len(task.devices) * len(task.cards) > FULL_CURVE:
        counts = coarse(layer.num_experts)
    ways = []
    for dense in task.devices:
        ways.append(Way(dense, CPU, CPU, NO_EXPERT))
        if layer.num_experts:
            ways += [Way(dense, card, CPU, counts) for card in task.cards]
            ways += [Way(dense, first, second, parts) for first, second in permutations(task.cards, 2)]
    return ways


def menu_of_ways(task: Task, layer: LayerShape, ways: Sequence[Way]) -> Menu:
    """Without costs: all 0."""
    parts = []
    for way in ways:
        warm = layer.num_experts - way.counts if way.rest != CPU else 0
        columns: dict[str, int | Ints] = {"first": way.device, "hot": way.counts, "second": way.rest, "warm": warm}
        parts.append(menu_of(task, layer, np.zeros(len(way.counts)), way.dense, **columns))
    return Menu.join(parts)


def cost_of_ways(task: Task, number: int, ways: Sequence[Way]) -> Floats:
    """Of the options in that order, for a layer's number."""
    return np.concatenate([task.curve(number, way)[way.counts] for way in ways])


def with_disk(task: Task, number: int, menu: Menu) -> Menu:
    """The options, and again with some of the experts that are on the CPU read from disk."""
    return Menu.join([menu, *_from_disk(task, number, menu)])


def coarse(count: int, parts: int = PARTS) -> Ints:
    """Up to so many numbers from 1 to `count`, which is among them."""
    return np.unique(np.linspace(0, count, parts + 1).astype(np.int64))[1:]


def experts_of(menu: Menu, option: int, order: Ints) -> NDArray[np.int8]:
    """The device of each expert, int8 [num_experts]; order: the hottest first."""
    hot, warm = int(menu.hot[option]), int(menu.warm[option])
    devices = np.full(len(order), CPU, dtype=np.int8)
    devices[order[:hot]] = menu.first[option]
    devices[order[hot : hot + warm]] = menu.second[option]
    return devices


def disk_ms(task: Task, number: int) -> Floats:
    """float64 [num_experts + 1]: what it adds to a step that the 0 .. all coldest experts are read from disk."""
    layer = task.cost.shape.layers[number]
    touch = task.cost.touch(number, task.traffic.streams)[hottest(task.cost.share(number))]
    rate = task.cost.hardware.ssd_read_gb_s.value
    return np.concatenate(([0.0], np.cumsum(touch[::-1]))) * layer.expert_bytes / rate / 1e6


def _from_disk(task: Task, number: int, menu: Menu) -> list[Menu]:
    """The options with experts on the CPU again, with some of those on disk."""
    layer = task.cost.shape.layers[number]
    if not layer.num_experts:
        return []
    added = disk_ms(task, number)
    found = []
    for count in coarse(layer.num_experts):
        some = menu.take(menu.hot + menu.warm + count <= layer.num_experts)
        size = some.size.copy()
        size[:, CPU] -= count * layer.expert_bytes
        columns = {field.name: getattr(some, field.name) for field in fields(some)}
        columns |= {"cost": some.cost + added[count], "size": size, "disk": np.full(len(size), count)}
        found.append(Menu(**columns))
    return found


def end_menu(task: Task, nbytes: int, cost: Sequence[float]) -> Menu:
    """Of the embedding or the head, with the costs of the devices of a task."""
    layer = LayerShape(dense=(), kv_bytes=0)
    menu = Menu.join(menu_of(task, layer, [each], device) for each, device in zip(cost, task.devices, strict=True))
    menu.size[np.arange(len(cost)), menu.dense] = nbytes
    return menu
