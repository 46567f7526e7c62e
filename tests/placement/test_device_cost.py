import numpy as np
import pytest
from isotherm.placement.accelerator_cost import AcceleratorCost
from isotherm.placement.cpu_cost import CpuCost
from isotherm.placement.device_cost import Slower
from isotherm.placement.hardware import Estimate
from isotherm.placement.placed import Placement
from isotherm.placement.shape import CPU
from support.cost_cases import accelerator, cpu, layer, model, product

SMALL, LARGE = product("down", 10), product("down", 1000)


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 7, 8, 9, 31, 64])
def test_products_take_what_the_profile_says(tokens: int) -> None:
    profile = cpu(read_gb_s=5)
    expected = profile.products["q4"].us(LARGE.nbytes, tokens) / 1e3
    assert CpuCost(profile, Slower()).products_ms((LARGE,), tokens) == pytest.approx(expected, rel=1e-12)


def test_an_expert_takes_its_products_and_its_own_cost_for_each_number_of_tokens() -> None:
    cost = CpuCost(cpu(), Slower())
    times = cost.expert_ms((SMALL, LARGE), 9)
    assert times[0] == 0
    assert times[1:] == pytest.approx([0.001 + cost.products_ms((SMALL, LARGE), n) for n in range(1, 10)], rel=1e-12)


def test_no_tokens_take_no_time() -> None:
    assert CpuCost(cpu(), Slower()).products_ms((LARGE,), 0) == 0
    assert AcceleratorCost(accelerator(), Slower()).products_ms((LARGE,), 0) == 0


def test_an_accelerator_computes_longer_than_it_reads_from_some_tokens_on() -> None:
    times = AcceleratorCost(accelerator(), Slower()).expert_ms((SMALL,), 4)
    assert times == pytest.approx([0, 2e-4, 4e-4, 6e-4, 8e-4])  # 200,000 operations a token, 1 TFLOPS
    reading = AcceleratorCost(accelerator(tflops=1e3), Slower()).expert_ms((SMALL,), 4)
    assert reading == pytest.approx([0, *[10240 / 100e6] * 4])


def test_slower_means_one_deviation_of_one_source() -> None:
    assert Slower("memory").rate(Estimate(2.0, 0.25), "memory") == pytest.approx(1.6)
    assert Slower("memory").time(Estimate(2.0, 0.25), "memory") == pytest.approx(2.5)
    assert Slower("memory").rate(Estimate(2.0, 0.25), "compute") == 2.0


def test_attention_of_a_prompt_on_a_card_reads_its_keys_and_values_at_least_once() -> None:
    cost = AcceleratorCost(accelerator(tflops=1e9), Slower())
    assert cost.prompt_ms(model(), layer(8, 2), 100, 28) == pytest.approx(128 * 1000 / 100e6)


def test_a_model_begins_on_the_cpu() -> None:
    placement = Placement.on_cpu(model(2, num_experts=3))
    assert placement.dense == (CPU, CPU)
    assert [devices.tolist() for devices in placement.experts] == [[CPU] * 3] * 2
    assert all(devices.dtype == np.int8 for devices in placement.experts)
