"""Why a plan is as it is, in numbers and in plain words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .cost import CostModel
from .hardware import CpuProfile
from .ledger import Account, device_name
from .placed import Placement, Prediction, Traffic
from .plan_file import ranges
from .shape import CPU, ModelShape

GIB = 2**30
_MOST_PARTS = 4  # of a step, that are told


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What there is to be explained. reason: the planner's, for its policy. positions: of the KV cache. neutral:
    whether there was no trace. from_disk: of each layer, how many experts are read from disk."""

    cost: CostModel
    placement: Placement
    traffic: Traffic
    decode: Prediction
    reason: str
    ledger: tuple[Account, ...]
    prices: Mapping[str, float]  # ms per GiB, by accelerator
    positions: int
    neutral: bool
    from_disk: tuple[int, ...] = ()

    @property
    def shape(self) -> ModelShape:
        return self.cost.shape

    @property
    def accelerators(self) -> range:
        return range(len(self.ledger) - 1)


def value_by_gib(facts: Facts) -> dict[str, tuple[float, ...]]:
    """By accelerator: ms of a decode step that each GiB of weights and KV cache on it saves, the best first. The last
    may be a part of one, and counts as it would if it went on.

    What a part saves is the time of its layer with the part on the CPU, less that of the plan.
    """
    return {device_name(device): _curve(_parts_on(facts, device)) for device in facts.accelerators}


def cpu_bytes(facts: Facts) -> float:
    """Bytes of weights and KV cache that the CPU is expected to read in a decode step."""
    cost, placement, traffic = facts.cost, facts.placement, facts.traffic
    total = float(facts.shape.head.nbytes) if placement.head == CPU else 0.0
    for number, layer in enumerate(facts.shape.layers):
        if placement.dense[number] == CPU:
            seen = min(traffic.context, layer.window or traffic.context)
            total += layer.dense_bytes + traffic.streams * seen * layer.kv_bytes
        if layer.num_experts:
            touched = touched_on_cpu(cost, placement, number, traffic.streams)
            on_disk = facts.from_disk[number] if facts.from_disk else 0
            total += float(touched[on_disk:].sum()) * layer.expert_bytes
    return total


def touched_on_cpu(cost: CostModel, placement: Placement, layer: int, tokens: int) -> NDArray[np.float64]:
    """Of the experts on the CPU, the coldest first: how likely so many tokens touch each."""
    on_cpu = placement.experts[layer] == CPU
    order = np.argsort(cost.share(layer)[on_cpu], kind="stable")
    touched: NDArray[np.float64] = cost.touch(layer, tokens)[on_cpu][order]
    return touched


def read_rate(cpu: CpuProfile) -> float:
    """GB/s that all threads of a profile read plainly."""
    counts = [count for count in cpu.read_gb_s if count <= cpu.threads] or list(cpu.read_gb_s)
    return max(cpu.read_gb_s[count].value for count in counts)


def cpu_free_layers(placement: Placement) -> tuple[int, ...]:
    """The layers that no part of lies on the CPU."""
    pairs = zip(placement.dense, placement.experts, strict=True)
    return tuple(layer for layer, (dense, experts) in enumerate(pairs) if dense != CPU and not (experts == CPU).any())


def reasons(facts: Facts) -> tuple[str, ...]:
    """The why, a sentence each."""
    told = [_sentence(facts.reason)]
    if facts.accelerators:
        values = value_by_gib(facts)
        for device in facts.accelerators:
            told += _of_accelerator(facts, device, values[device_name(device)])
        told.append(_cpu_free(facts))
    else:
        told.append(_no_accelerator(facts))
    told += _from_disk(facts)
    told += [_kv(facts), _largest(facts.decode.parts_ms, facts.decode.step_ms), _bound(facts)]
    if facts.neutral and facts.shape.moe_layers:
        told.append("`isotherm profile` would record a routing trace, which says what experts the traffic goes to.")
    if not facts.shape.whole:
        told.append("The weights were not there, or were taken to be in another format: sizes are of the header alone.")
    return tuple(told)


def _parts_on(facts: Facts, device: int) -> list[tuple[float, int]]:
    """(ms saved, bytes) of each layer's share of an accelerator, and of the head."""
    cost, placement, traffic, shape = facts.cost, facts.placement, facts.traffic, facts.shape
    parts = []
    for number, layer in enumerate(shape.layers):
        dense, experts = placement.dense[number], placement.experts[number]
        size = int(np.count_nonzero(experts == device)) * layer.expert_bytes
        size += layer.dense_bytes + facts.positions * layer.kv_bytes if dense == device else 0
        if size:
            without = np.where(experts == device, np.int8(CPU), experts)
            then = cost.layer_ms(number, CPU if dense == device else dense, without, traffic)
            parts.append((then - cost.layer_ms(number, dense, experts, traffic), size))
    if placement.head == device:
        without_head = Placement(dense=placement.dense, experts=placement.experts, embed=placement.embed, head=CPU)
        saved = cost.decode(without_head, traffic).step_ms - cost.decode(placement, traffic).step_ms
        parts.append((saved, shape.head.nbytes))
    return parts


def _curve(parts: Sequence[tuple[float, int]]) -> tuple[float, ...]:
    """What each GiB saves where parts fill them in the order of their worth."""
    ordered = sorted(parts, key=lambda part: -part[0] / part[1])
    size = np.cumsum([0, *(nbytes for _, nbytes in ordered)])
    saved = np.cumsum([0.0, *(ms for ms, _ in ordered)])
    if not ordered:
        return ()
    edges = np.minimum(np.arange(-(-int(size[-1]) // GIB) + 1) * GIB, size[-1])
    return tuple(float(rate) for rate in np.diff(np.interp(edges, size, saved)) / np.diff(edges) * GIB)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _of_accelerator(facts: Facts, device: int, values: tuple[float, ...]) -> list[str]:
    name, placement = device_name(device), facts.placement
    account = next(account for account in facts.ledger if account.device == name)
    experts = sum(int(np.count_nonzero(at == device)) for at in placement.experts)
    of = sum(layer.num_experts for layer in facts.shape.layers)
    layers = sum(at == device for at in placement.dense)
    holds = f"{name} holds {experts} of {of} experts and the dense part of {layers} of {len(placement.dense)} layers"
    told = [f"{holds}: {account.total / GIB:.2f} of {account.budget / GIB:.2f} GiB."]
    if values:
        last = f", its last {values[-1]:.2f}" if len(values) > 1 else ""
        told.append(f"The first GiB of weights and KV cache on {name} saves {values[0]:.2f} ms a step{last}.")
    price = facts.prices.get(name, 0.0)
    told.append(
        f"The next GiB on {name} would save about {price:.2f} ms a step."
        if price > 0
        else f"More memory on {name} would save nothing: what is worth it lies there."
    )
    return told


def _cpu_free(facts: Facts) -> str:
    free, of = cpu_free_layers(facts.placement), len(facts.placement.dense)
    if not free:
        return "Every layer needs the CPU."
    if len(free) == of:
        return f"No layer needs the CPU: all {of} lie on accelerators."
    return f"{len(free)} of {of} layers need no CPU at all: {ranges(free)}."


def _no_accelerator(facts: Facts) -> str:
    cpu = facts.cost.hardware.cpu
    threads = "one thread" if cpu.threads == 1 else f"{cpu.threads} threads"
    size = facts.shape.nbytes / GIB
    told = f"No accelerator: all {size:.2f} GiB of weights lie in RAM, and every layer is computed by {threads}"
    return f"{told} of {cpu.name}."


def _from_disk(facts: Facts) -> list[str]:
    count = sum(facts.from_disk)
    if not count:
        return []
    size = sum(own * layer.expert_bytes for own, layer in zip(facts.from_disk, facts.shape.layers, strict=True))
    return [
        f"RAM is short: {count} experts, {size / GIB:.2f} GiB, would be read from disk whenever they are chosen, which "
        "`isotherm serve` does not do."
    ]


def _kv(facts: Facts) -> str:
    size = facts.positions * facts.shape.kv_bytes
    told = (
        f"The KV cache of {facts.positions} positions takes {size / GIB:.2f} GiB, "
        f"{facts.shape.kv_bytes / 1024:.1f} KiB each in {facts.shape.kv_kind}"
    )
    worth = sum(
        facts.positions * layer.kv_bytes / GIB * facts.prices.get(device_name(at), 0.0)
        for layer, at in zip(facts.shape.layers, facts.placement.dense, strict=True)
        if at != CPU
    )
    if not worth:
        return f"{told}."
    rate = facts.traffic.streams * 1000 / facts.decode.step_ms
    faster = facts.traffic.streams * 1000 / max(facts.decode.step_ms - worth, facts.decode.step_ms / 2)
    return f"{told}; as weights that memory would save {worth:.2f} ms a step ({faster - rate:+.2g} tokens/s)."


def _largest(parts: Mapping[str, float], step_ms: float) -> str:
    largest = sorted(parts.items(), key=lambda part: -part[1])[:_MOST_PARTS]
    listed = ", ".join(f"{name} {ms:.2f} ms ({ms / step_ms:.0%})" for name, ms in largest if ms > 0)
    return f"The largest parts of a decode step: {listed}."


def _bound(facts: Facts) -> str:
    size, rate = cpu_bytes(facts), read_rate(facts.cost.hardware.cpu)
    if not size:
        return "The CPU reads no weights in a decode step."
    return (
        f"A decode step reads {size / 1e9:.2f} GB from RAM; at {rate:.1f} GB/s that alone allows "
        f"{facts.traffic.streams * rate * 1e9 / size:.1f} tokens/s."
    )
