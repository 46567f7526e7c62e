"""Policies: what may lie on an accelerator: whole layers, the hottest experts, recently used ones, or both."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np

from .decode_cost import add_head, add_start
from .menu import Menu, Task, Way, coarse, cost_of_ways, end_menu, layer_ways, menu_of, menu_of_ways, with_disk
from .options import Floats, Ints
from .reuse import hits_beside_pins
from .shape import CPU, LayerShape
from .times import Times
from .touch import hottest
from .trace import RoutingTrace

REFINED = 6  # layers with a part of their experts on an accelerator that get every split between two
PINNED = (8, 4, 2)  # a tail begins after one part in so many of a layer's experts

Parts = list[Menu]  # in the order of a step: the embedding, the layers, the head


def static_parts(task: Task) -> Parts:
    """Any number of the hottest experts of each layer on any accelerator, the others on the CPU, or on disk where host
    memory is short of them and there is a disk."""
    cost, shape = task.cost, task.cost.shape
    short = shape.nbytes + shape.kv_bytes * task.kv_positions > task.budgets[-1]
    disk = short and cost.hardware.ssd_read_gb_s.value > 0
    made: dict[LayerShape, tuple[list[Way], Menu]] = {}  # layers of one form differ in what they cost alone
    alike: dict[LayerShape, Menu] = {}  # and without a trace in nothing
    menus = []
    for number, layer in enumerate(shape.layers):
        if layer not in made:
            ways = layer_ways(task, layer, few=disk)
            made[layer] = ways, menu_of_ways(task, layer, ways)
        if cost.trace is not None or layer not in alike:
            ways, menu = made[layer]
            menu = replace(menu, cost=cost_of_ways(task, number, ways))
            alike[layer] = with_disk(task, number, menu) if disk else menu
        menus.append(alike[layer])
    starts, heads = ([Times() for _ in task.devices] for _ in range(2))
    for start, head, device in zip(starts, heads, task.devices, strict=True):
        add_head(head, cost.machine.decoding, device, task.traffic.streams)
        add_start(start, cost.machine.decoding, device)
    # The embedding is looked up, not multiplied; what a step takes anyhow is counted with it.
    embed = end_menu(task, shape.embed.nbytes, [times.total_ms for times in starts])
    return [embed, *menus, end_menu(task, shape.head.nbytes, [times.total_ms for times in heads])]


def refined_parts(task: Task, parts: Parts, choices: Ints) -> Parts:
    """With every split between two accelerators, for layers that hold a part of their experts on one: what is left of
    two of them may hold what neither can."""
    layers = task.cost.shape.layers
    hot = [int(menu.hot[choice]) for menu, choice in zip(parts, choices, strict=True)][1:-1]
    partly = [number for number, layer in enumerate(layers) if 0 < hot[number] < layer.num_experts]
    parts = list(parts)
    for number in partly[:REFINED] if len(task.cards) > 1 else ():
        menu = parts[number + 1]
        dense = int(menu.dense[choices[number + 1]])
        counts = np.arange(1, layers[number].num_experts)
        ways = [Way(dense, first, second, counts) for first, second in permutations(task.cards, 2)]
        split = replace(menu_of_ways(task, layers[number], ways), cost=cost_of_ways(task, number, ways))
        parts[number + 1] = Menu.join([menu, split])
    return parts


def whole_layer_parts(task: Task, static: Parts) -> Parts:
    """Each layer is all on one accelerator, or has nothing there."""
    counts = [0, *(layer.num_experts for layer in task.cost.shape.layers), 0]
    made: dict[int, Menu] = {}  # parts that are one stay one
    for menu, count in zip(static, counts, strict=True):
        if id(menu) not in made:
            whole = menu.hot == np.where(menu.dense == CPU, 0, count)
            together = (menu.warm == 0) & ((menu.hot == 0) | (menu.first == menu.dense))
            made[id(menu)] = menu.take(whole & together)
    return [made[id(menu)] for menu in static]


def hit_tables(task: Task, trace: RoutingTrace) -> dict[int, Floats]:
    """By how many experts of each layer are pinned, none first: `hits_beside_pins` of the trace's layers."""
    order = np.array([hottest(task.cost.share(number)) for number in trace.layers])
    pinned = {0, *(trace.num_experts // part for part in PINNED)}
    return hits_beside_pins(trace.sample, order, sorted(pinned), task.traffic.streams)


def adaptive_parts(task: Task, static: Parts, trace: RoutingTrace, hits: dict[int, Floats]) -> Parts:
    """Slots of each layer on an accelerator hold the experts that were used last, and none is pinned."""
    parts, slots = list(static), Slots(task, [0])
    for index, number in enumerate(trace.layers):
        menu = static[number + 1]
        without = menu.take(menu.hot + menu.warm == 0)
        parts[number + 1] = Menu.join([without, slots.of(number, {0: hits[0][index]})])
    return parts


def tail_parts(task: Task, static: Parts, trace: RoutingTrace, hits: dict[int, Floats]) -> Parts:
    """The static ways, and after them those in which slots for the experts that were used last follow pinned ones."""
    pinned = [each for each in hits if each]
    parts, slots = list(static), Slots(task, pinned)
    for index, number in enumerate(trace.layers):
        found = slots.of(number, {each: hits[each][index] for each in pinned})
        parts[number + 1] = Menu.join([static[number + 1], found])
    return parts


class Slots:
    """Options of layers with slots on an accelerator, beside so many pinned experts.

    The layer takes what it would with as many hits by pinned experts alone. Each miss is computed by the CPU and then
    brought into a slot, for which host memory is read once more.
    """

    def __init__(self, task: Task, pinned: Sequence[int]) -> None:
        self._task, self._pinned = task, pinned
        self._made: dict[LayerShape, Menu] = {}  # without what differs between layers of one form

    def of(self, number: int, hits: dict[int, Floats]) -> Menu:
        """Of a layer's number. hits: of a token in 0 .. all slots, by how many experts are pinned."""
        task, layer = self._task, self._task.cost.shape.layers[number]
        if layer not in self._made:
            self._made[layer] = Menu.join(self._ways(layer))
        share = np.sort(task.cost.share(number))[::-1]
        held = np.concatenate(([0.0], np.cumsum(share)))
        read = max(estimate.value for estimate in task.cost.hardware.cpu.read_gb_s.values())
        hit = [np.minimum(held[each] + hits[each][coarse(layer.num_experts - each)], held[-1]) for each in self._pinned]
        alike = np.interp(np.concatenate(hit), held, np.arange(len(held)))
        moved = (task.traffic.streams * (held[-1] - np.concatenate(hit)) * layer.expert_bytes).astype(np.int64)
        brought, counts = moved / read / 1e6, np.arange(len(held))
        costs = [
            np.interp(alike, counts, task.curve(number, Way(dense, card, CPU, counts))) + brought
            for dense in task.devices
            for card in task.cards
        ]
        return replace(self._made[layer], cost=np.concatenate(costs), moved=np.tile(moved, len(costs)))

    def _ways(self, layer: LayerShape) -> Iterator[Menu]:
        slots = [coarse(layer.num_experts - each) for each in self._pinned]
        hot = np.concatenate([each + count for each, count in zip(self._pinned, slots, strict=True)])
        for dense in self._task.devices:
            for card in self._task.cards:
                columns: dict[str, int | Ints] = {"first": card, "hot": hot, "slots": np.concatenate(slots)}
                yield menu_of(self._task, layer, np.zeros(len(hot)), dense, **columns)
