import math

import numpy as np
import pytest
from isotherm.placement.cost import DECODE_ERROR, PREFILL_ERROR, CostModel
from isotherm.placement.hardware import HardwareProfile
from isotherm.placement.placed import Placement, Prediction, Traffic
from isotherm.placement.shape import CPU, ModelShape
from support.cost_cases import free_accelerator, machine, model, trace_of

ONE = Traffic(streams=1, context=9)


def error(found: Prediction) -> float:
    """The relative deviation behind the interval."""
    assert found.low < found.value < found.high
    assert found.high / found.value == pytest.approx(found.value / found.low)
    return math.log(found.high / found.value) / 1.645


def on_cpu(shape: ModelShape, hardware: HardwareProfile, traffic: Traffic = ONE) -> Prediction:
    return CostModel(shape, hardware).decode(Placement.on_cpu(shape), traffic)


def test_exact_estimates_leave_the_error_of_the_model() -> None:
    shape = model(3)
    assert error(on_cpu(shape, machine())) == pytest.approx(DECODE_ERROR)
    found = CostModel(shape, machine()).prefill(Placement.on_cpu(shape), Traffic(prompt=1))
    assert error(found) == pytest.approx(PREFILL_ERROR)


def test_spreads_do_not_average_out_over_layers() -> None:
    errors = [error(on_cpu(model(layers), machine(spread=0.1))) for layers in (10, 1000)]
    assert errors[1] == pytest.approx(errors[0], rel=0.03)
    assert errors[0] > 1.5 * DECODE_ERROR


def test_sources_are_independent_of_each_other() -> None:
    """Of reading and the other costs, of which each may be off by a tenth, the whole is off by less than a tenth."""
    found = error(on_cpu(model(), machine(spread=0.1, step_us=1000)))
    assert found < math.hypot(DECODE_ERROR, 0.1)
    assert found > math.hypot(DECODE_ERROR, 0.1 / math.sqrt(2)) * 0.9


def test_without_a_trace_streams_may_share_more_experts_than_equal_ones_would() -> None:
    shape = model(4, num_experts=64, top_k=8)
    errors = [error(on_cpu(shape, machine(), Traffic(streams=streams))) for streams in (1, 8)]
    assert errors[0] == pytest.approx(DECODE_ERROR)
    assert errors[1] > 1.2 * DECODE_ERROR


def test_a_longer_trace_is_surer() -> None:
    random, errors = np.random.default_rng(1), []
    shape = model()
    half = Placement(dense=(CPU,), experts=(np.repeat(np.array([0, CPU], np.int8), 4),), embed=CPU, head=CPU)
    for tokens in (100, 10_000):
        chosen = random.random((tokens, 1, 8)).argsort(axis=2)[:, :, :2]
        cost = CostModel(shape, machine(free_accelerator(), call_us=5000), trace_of(chosen.tolist(), 8))
        errors.append(error(cost.decode(half, ONE)))
    assert errors[0] > errors[1] > DECODE_ERROR
    assert errors[1] == pytest.approx(DECODE_ERROR, rel=0.02)
