"""Menu: the ways in which one part of a model can lie on a machine, with what each costs and takes of the budgets."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

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


@dataclass(frozen=True, slots=True)
class Task:
    """budgets: bytes of each accelerator and last of the host, so that CPU is the index of the latter."""

    cost: CostModel
    traffic: Traffic
    budgets: tuple[int, ...]
    kv_positions: int

    @property
    def cards(self) -> range:
        return range(len(self.budgets) - 1)

    @property
    def devices(self) -> tuple[int, ...]:
        return (CPU, *self.cards)


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


def layer_menu(task: Task, number: int, *, disk: bool) -> Menu:
    """All ways to lay out a layer: its dense part anywhere, its hottest experts on one accelerator, or all of them on
    two. disk: experts may also be read from disk, in parts."""
    layer = task.cost.shape.layers[number]
    parts = []
    for dense in task.devices:
        curves = {card: task.cost.expert_curve(number, dense, card, task.traffic) for card in task.cards}
        parts.append(menu_of(task, layer, _without(task, number, dense, curves), dense))
        if not layer.num_experts:
            continue
        counts = np.arange(1, layer.num_experts + 1)
        if disk or len(counts) * len(task.devices) * len(curves) > FULL_CURVE:
            counts = coarse(layer.num_experts)
        parts += [menu_of(task, layer, curve[counts], dense, first=card, hot=counts) for card, curve in curves.items()]
        parts.append(splits(task, number, dense, coarse(layer.num_experts, SPLIT)[:-1]))
    menu = Menu.join(parts)
    return Menu.join([menu, *_from_disk(task, number, menu)]) if disk else menu


def coarse(count: int, parts: int = PARTS) -> Ints:
    """Up to so many numbers from 1 to `count`, which is among them."""
    return np.unique(np.linspace(0, count, parts + 1).astype(np.int64))[1:]


def splits(task: Task, number: int, dense: int, counts: Ints) -> Menu:
    """All experts on two accelerators, so many of the hottest on one: the CPU is free of the layer."""
    layer = task.cost.shape.layers[number]
    order = hottest(task.cost.share(number))
    parts = [menu_of(task, layer, np.zeros(0), dense)]
    for first in task.cards:
        for second in task.cards:
            if first == second:
                continue
            cost = []
            for count in counts:
                resident = np.full(layer.num_experts, second, dtype=np.int8)
                resident[order[:count]] = first
                cost.append(task.cost.layer_ms(number, dense, resident, task.traffic))
            warm = layer.num_experts - counts
            parts.append(menu_of(task, layer, cost, dense, first=first, hot=counts, second=second, warm=warm))
    return Menu.join(parts)


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


def _without(task: Task, number: int, dense: int, curves: dict[int, Floats]) -> Floats:
    """[1]: the layer's time with all experts on the CPU."""
    curve = curves[0] if curves else task.cost.expert_curve(number, dense, CPU, task.traffic)
    return curve[:1]


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
