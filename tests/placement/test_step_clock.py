"""Times of replayed steps, against sums step by step."""

from dataclasses import replace

import numpy as np
import pytest
from isotherm.placement.cost import CostModel
from isotherm.placement.machine import Machine
from isotherm.placement.placed import Placement, Traffic
from isotherm.placement.replay import Touches, touches
from isotherm.placement.shape import CPU, ModelShape
from isotherm.placement.step_clock import Served, StepClock
from support.cost_cases import accelerator, machine, model
from support.drawn_traffic import drawn, skewed, trace_of

LAYERS, EXPERTS, TOP_K, STREAMS = 2, 8, 2, 3
SHAPE: ModelShape = model(LAYERS, EXPERTS, TOP_K)
HARDWARE = machine(accelerator(), accelerator(read_gb_s=50))
TRACE = trace_of(drawn(skewed(LAYERS, EXPERTS), 60, TOP_K), EXPERTS)
TRAFFIC = Traffic(streams=STREAMS, context=64)
DENSE = replace(Placement.on_cpu(SHAPE), dense=(0, CPU))


@pytest.fixture(scope="module")
def touched() -> Touches:
    return touches(TRACE, STREAMS)


@pytest.fixture(scope="module")
def served(touched: Touches) -> Served:
    """Hits and loads at random; slots of layer 0 on accelerator 0, of layer 1 on accelerator 1."""
    rng = np.random.default_rng(4)
    hits = rng.random(len(touched.experts)) < 0.5
    loads = ~hits & (rng.random(len(hits)) < 0.5)
    return Served(at=np.where(hits, touched.layer, CPU), target=touched.layer, loads=loads)


def clock(touched: Touches, read_gb_s: float = 1e9) -> StepClock:
    return StepClock(Machine(HARDWARE, SHAPE), DENSE, TRAFFIC, touched, read_gb_s)


def plain(touched: Touches, served: Served, *, fetching: bool) -> tuple[list[float], list[list[float]]]:
    """By the definition, loop by loop: experts' time, and each accelerator's time of link, of each step."""
    devices = Machine(HARDWARE, SHAPE).decoding
    times, links = [], []
    for step in range(touched.steps):
        total, link = 0.0, [0.0, 0.0]
        for layer in range(LAYERS):
            place = step * LAYERS + layer
            way: dict[int, float] = {}
            for touch in range(touched.offsets[place], touched.offsets[place + 1]):
                load_ms = 30 * 1024 / 10e6  # three times 10 KiB over 10 GB/s
                at = int(served.at[touch])
                if served.loads[touch]:
                    link[layer] += load_ms
                    at = layer if fetching else at
                dense = DENSE.dense[layer]
                if at not in way:
                    way[at] = devices.call_ms(dense, at) + devices.way_ms(SHAPE.layers[layer], dense, at, STREAMS)
                way[at] += devices.expert_ms(SHAPE.layers[layer], dense, at, STREAMS)[touched.tokens[touch]]
                way[at] += load_ms if fetching and served.loads[touch] else 0.0
            total += max(way.values())
        times.append(total)
        links.append(link)
    return times, links


def others_ms(touched: Touches) -> float:
    """A step without its experts: the cost model's, less the experts' own part of it."""
    on_cpu = np.full(len(touched.experts), CPU)
    served = Served(at=on_cpu, target=on_cpu, loads=np.zeros(len(on_cpu), bool))
    return float(clock(touched).computing(served)[0]) - plain(touched, served, fetching=False)[0][0]


def test_what_is_missing_is_computed_by_the_cpu_beside_the_accelerators(touched: Touches, served: Served) -> None:
    times, links = plain(touched, served, fetching=False)
    expected = np.maximum(np.array(times) + others_ms(touched), np.array(links).max(axis=1))
    np.testing.assert_allclose(clock(touched).computing(served), expected)


def test_what_is_fetched_comes_before_it_is_computed(touched: Touches, served: Served) -> None:
    times, _ = plain(touched, served, fetching=True)
    np.testing.assert_allclose(clock(touched).fetching(served), np.array(times) + others_ms(touched))


def test_loads_behind_the_step_hold_it_up_where_the_link_is_slow(touched: Touches, served: Served) -> None:
    slow = machine(accelerator(to_gb_s=0.01), accelerator(to_gb_s=0.01))
    own = StepClock(Machine(slow, SHAPE), DENSE, TRAFFIC, touched, 1e9)
    at_once = own.computing(replace(served, loads=np.zeros_like(served.loads)))
    link_ms = touched.sums(served.loads).max(axis=1) * 30 * 1024 / 0.01 / 1e6
    assert (link_ms > at_once).any()
    np.testing.assert_allclose(own.computing(served), np.maximum(at_once, link_ms))


def test_cpu_and_links_share_the_memory(touched: Touches, served: Served) -> None:
    expert, read_gb_s = 30 * 1024, 1e-3
    on_cpu, loads = touched.sums(served.at == CPU).sum(axis=1), touched.sums(served.loads).sum(axis=1)
    slow = clock(touched, read_gb_s)
    np.testing.assert_allclose(slow.computing(served), (on_cpu + loads) * expert / read_gb_s / 1e6)
    np.testing.assert_allclose(slow.fetching(served), on_cpu * expert / read_gb_s / 1e6)


@pytest.mark.parametrize("streams", [1, 3])
def test_a_placement_takes_the_time_that_the_cost_model_says(streams: int) -> None:
    sample = drawn(skewed(LAYERS, EXPERTS), 3000, TOP_K, seed=3)
    trace = trace_of(sample, EXPERTS, tuple(range(0, 3000, 100)))
    experts = tuple(np.where(np.arange(EXPERTS) < 4, 0, CPU).astype(np.int8) for _ in range(LAYERS))
    placement, traffic = replace(DENSE, experts=experts), Traffic(streams=streams, context=64)
    found = touches(trace, streams)
    at = np.where(found.experts < 4, 0, CPU)
    own = StepClock(Machine(HARDWARE, SHAPE), placement, traffic, found, 1e9)
    served = Served(at=at, target=at, loads=np.zeros(len(at), bool))
    predicted = CostModel(SHAPE, HARDWARE, trace).decode(placement, traffic).step_ms
    assert own.computing(served).mean() == pytest.approx(predicted, rel=0.02)


def test_bytes_are_those_of_the_experts(touched: Touches, served: Served) -> None:
    own = clock(touched)
    assert own.read_bytes(served).sum() == (served.at == CPU).sum() * 30 * 1024
    assert own.loaded_bytes(served).sum() == served.loads.sum() * 30 * 1024
