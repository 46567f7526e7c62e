"""On a modelled clock an accelerator and the CPU work at the same time: a layer takes the longer of the two."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from isotherm.daemon.step import Chunk, StepPlan
from isotherm.experts.host_cost import HostCost, Part
from isotherm.experts.model import Model, open_model
from isotherm.experts.step_inputs import StepInputs
from isotherm.gpu_kernels.device_spec import Spec
from isotherm.gpu_kernels.emulated import Emulated
from support.hybrid import hybrid, random_placement
from support.tiny import write_gguf

LAYERS, LAUNCHES = 3, 4  # of a layer: gather, align, gate and up, down
STEP = StepPlan((Chunk("a", list(range(40)), 0, (0, 1, 2), False),))


class Steady(HostCost):
    """Each layer's experts take so many seconds, and all else nothing."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def seconds(self, parts: Iterable[Part], inputs: StepInputs) -> float:
        return self._seconds * sum(part.what == "experts" for part in parts)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path: Path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_gguf(path, "qwen2_moe", "Q8_0", num_hidden_layers=LAYERS)
    return open_model(path)


@pytest.mark.parametrize("host_ms", [0.5, 2.0, 8.0])
def test_a_split_layer_takes_the_longer_of_both(host_ms: float, model: Model) -> None:
    device_ms = 2.0
    instant = {"hop_us": 0.0, "read_gb_s": 1e9, "to_gb_s": 1e9, "from_gb_s": 1e9, "tflops": {"other": 1e9}}
    accelerator = Emulated(Spec(launch_us=1e3 * device_ms / LAUNCHES, **instant))
    placement = random_placement(model.spec, [0.5], seed=1)
    with hybrid(model, placement, (accelerator,), cost=Steady(host_ms / 1e3)) as runner:
        before = accelerator.now()
        runner.execute(STEP)
        took_ms = 1e3 * (accelerator.now() - before)
    # in the last layer no token matters, as none is sampled
    assert took_ms == pytest.approx((LAYERS - 1) * max(host_ms, device_ms), rel=0.01)


def test_without_a_cost_only_accelerators_take_time(model: Model) -> None:
    accelerator = Emulated(Spec())
    placement = random_placement(model.spec, [0.0], seed=1)
    with hybrid(model, placement, (accelerator,)) as runner:
        runner.execute(STEP)
        assert accelerator.now() == 0.0
