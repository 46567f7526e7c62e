from math import comb

import numpy as np
import pytest
from isotherm.placement.cost import CostModel
from isotherm.placement.device_cost import visible_pairs
from isotherm.placement.placed import Placement, Traffic
from isotherm.placement.prefill_cost import MOST_TOKENS
from isotherm.placement.shape import CPU, ModelShape
from isotherm.placement.streaming import LEAST_TOKENS
from support.cost_cases import accelerator, free_accelerator, layer, machine, model, trace_of

EXPERTS = ("experts on the CPU", "experts on gpu0")


def experts_us(tokens: int) -> float:
    """Of eight experts of which a token chooses two; without the call."""
    kib_us = 0.0
    for n in range(1, tokens + 1):
        chance = comb(tokens, n) * 0.25**n * 0.75 ** (tokens - n)
        first, *others = [0.5] * (n // 8) + [{4: 0.4, 2: 0.3, 1: 0.2}[size] for size in (4, 2, 1) if n & size]
        kib_us += chance * (1 + 30.72 + 30 * (0.5 * first + sum(others)))
    return 8 * kib_us


def test_a_prompt_of_two_chunks_takes_what_was_worked_out_by_hand() -> None:
    """8 and 4 tokens through a whole layer and a last one, of which only the very last token needs all."""
    shape = model(2)
    found = CostModel(shape, machine()).prefill(Placement.on_cpu(shape), Traffic(prompt=12, chunk=8))
    expected = {
        "dense": 204.8 + 0.5 * 100 + 204.8 + 0.5 * 80  # whole layer
        + 40.96 + 0.5 * 20 + 40.96 + 0.5 * 16 + 163.84 + 0.5 * 32,  # k and v, then q and o of one token
        "attention": (36 + 42) * 2000 / 4e3 + 12 * 1000 / 2e3,
        "norms and sums": 2 * 12 * 0.1,
        "calls": 4 * 12 + 3 * 10,
        "experts on the CPU": experts_us(8) + experts_us(4) + experts_us(1),
        "head": 1124,
        "step": 100,
    }  # fmt: skip
    assert found.parts_ms == pytest.approx({name: us / 1e3 for name, us in expected.items()}, rel=1e-12)
    assert found.value == pytest.approx(12e6 / sum(expected.values()), rel=1e-12)


@pytest.mark.parametrize("window", [None, 1, 5, 8, 100])
@pytest.mark.parametrize(("start", "tokens"), [(0, 1), (0, 8), (3, 4), (8, 7), (50, 9)])
def test_pairs_are_those_that_counting_finds(window: int | None, start: int, tokens: int) -> None:
    counted = sum(min(position + 1, window or 10**6) for position in range(start, start + tokens))
    assert visible_pairs(layer(4, 2, window=window), start, tokens) == counted


def test_longer_prompts_take_longer_and_larger_chunks_do_not() -> None:
    shape = model(2)
    cost, here = CostModel(shape, machine()), Placement.on_cpu(shape)
    times = [cost.prefill(here, Traffic(prompt=n, chunk=64)).step_ms for n in (1, 8, 64, 65, 200)]
    assert np.all(np.diff(times) > 0)
    chunked = [cost.prefill(here, Traffic(prompt=128, chunk=n)).step_ms for n in (8, 32, 128)]
    assert np.all(np.diff(chunked) < 0)


def on_card(shape: ModelShape) -> Placement:
    """All but the experts."""
    return Placement(dense=(0,) * len(shape.layers), experts=Placement.on_cpu(shape).experts, embed=CPU, head=0)


def test_streaming_is_bound_by_the_link_while_a_card_computes() -> None:
    shape = model(2)
    card = accelerator(to_gb_s=0.5, hop_us=0, launch_us=0, tflops=1e6, from_gb_s=1e9, read_gb_s=1e9)
    cost, traffic = CostModel(shape, machine(card, expert_us=1e4)), Traffic(prompt=256, chunk=256)
    streamed = cost.prefill(on_card(shape), traffic)
    assert streamed.parts_ms["experts on gpu0"] == pytest.approx(8 * 30 * 1024 / 0.5e6)
    kept = cost.prefill(on_card(shape), traffic, staging=False)
    assert "experts on gpu0" not in kept.parts_ms
    assert kept.step_ms > streamed.step_ms


def experts_ms(cost: CostModel, placement: Placement) -> float:
    """Of a chunk of 256 tokens, the last of them not counted."""
    parts = cost.prefill(placement, Traffic(prompt=256, chunk=256)).parts_ms
    alone = cost.prefill(placement, Traffic(prompt=1)).parts_ms
    return sum(parts.get(name, 0.0) for name in EXPERTS) - sum(alone.get(name, 0.0) for name in EXPERTS) / 2


def test_experts_are_streamed_until_the_tail_on_the_cpu_takes_as_long() -> None:
    """Of eight experts of 64 tokens the CPU takes 121 us each, the link 61 us: five are streamed, three are not."""
    shape = model(2, sent_bytes=0)
    card = accelerator(to_gb_s=0.5, hop_us=0, launch_us=0, tflops=1e6, from_gb_s=1e9, read_gb_s=1e9)
    cost = CostModel(shape, machine(card, read_gb_s=1e3, call_us=0))
    assert experts_ms(cost, Placement.on_cpu(shape)) == pytest.approx(3 * 0.121, rel=0.03)


def test_what_is_streamed_is_read_from_the_memory_that_the_cpu_reads() -> None:
    shape = model(2)
    cost = CostModel(shape, machine(free_accelerator(), read_gb_s=0.1))
    assert experts_ms(cost, on_card(shape)) == pytest.approx(8 * 0.3072, rel=0.03)


def test_a_few_tokens_are_not_worth_streaming() -> None:
    shape = model(2)
    cost, traffic = CostModel(shape, machine(free_accelerator())), Traffic(prompt=LEAST_TOKENS - 1)
    found = cost.prefill(on_card(shape), traffic)
    assert found.parts_ms == cost.prefill(on_card(shape), traffic, staging=False).parts_ms


def test_experts_that_lie_on_a_card_are_not_streamed() -> None:
    shape = model(2)
    there = Placement(dense=(0, 0), experts=(np.zeros(8, np.int8),) * 2, embed=CPU, head=0)
    slow_link = CostModel(shape, machine(accelerator(to_gb_s=1e-3, hop_us=0)))
    fast_link = CostModel(shape, machine(accelerator(to_gb_s=1e3, hop_us=0)))
    traffic = Traffic(prompt=64)
    moved = (slow_link.prefill(there, traffic).step_ms - fast_link.prefill(there, traffic).step_ms) * 1e-3 * 1e6
    assert moved == pytest.approx(64 * 4000, rel=0.01)  # only the hidden state


@pytest.mark.parametrize("launch_us", [100, 200, 300])
def test_break_even_is_where_a_scan_finds_it(launch_us: float) -> None:
    shape = model(2)
    cost = CostModel(shape, machine(accelerator(launch_us=launch_us, tflops=1e3)))
    found = cost.break_even(0, 0)

    def step_ms(tokens: int, staging: bool) -> float:
        traffic = Traffic(prompt=tokens, chunk=tokens)
        return cost.prefill(on_card(shape), traffic, staging=staging).step_ms

    assert LEAST_TOKENS < found < 1000
    for tokens in (LEAST_TOKENS, found):
        assert step_ms(tokens, True) == step_ms(tokens, False)
    for tokens in (found + 1, found + 2, 2 * found):
        assert step_ms(tokens, True) < step_ms(tokens, False)


def test_break_even_of_a_free_card_is_the_least_and_of_a_slow_one_never() -> None:
    assert CostModel(model(), machine(free_accelerator())).break_even(0, 0) == LEAST_TOKENS - 1
    assert CostModel(model(), machine(accelerator(tflops=1e-6))).break_even(0, 0) == MOST_TOKENS


def test_prompts_are_predicted_by_what_prompts_chose() -> None:
    trace = trace_of([[[0, 1], [0, 1]]] * 400, 8)
    trace.phases["prefill"] = trace.phases["decode"]
    shape = model(2)
    times = [
        CostModel(shape, machine(), each).prefill(Placement.on_cpu(shape), Traffic(prompt=64)).step_ms
        for each in (trace, None)
    ]
    assert times[0] < times[1]  # 64 tokens on two experts fill blocks of 8 better than on eight, and read less
