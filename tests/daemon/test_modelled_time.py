"""On a modelled clock a step takes what the cost model predicts of its placement, and devices work at once."""

import pytest
from isotherm.experts.model import Model, open_model
from isotherm.placement.placed import Placement
from isotherm.placement.shape import CPU
from isotherm.placement.trace import RoutingTrace
from support.hybrid import random_placement
from support.modelled import timed
from support.tiny import write_gguf

LAYERS, EXPERTS = 3, 16
STEPS, REPEATS = {1: 20, 5: 10}, 4  # of so many streams; graphs have rows for 1 and for 8
WITHIN = 0.05  # of what was predicted
ONE, TWO = ({},), ({}, {"read_gb_s": 4.0, "to_gb_s": 1.0, "from_gb_s": 1.0})
ALL = (0,) * (LAYERS + 2)
MIXED = (CPU, 0, CPU, 0, CPU)

# Devices, share of experts on each, where dense parts lie.
PLACEMENTS = {
    "nothing": (ONE, [0.0], ()),
    "half the experts": (ONE, [0.5], ()),
    "all experts": (ONE, [1.0], ()),
    "two cards": (TWO, [0.5, 0.25], ()),
    "dense parts, half the experts": (ONE, [0.5], ALL),
    "dense parts alone": (ONE, [0.0], ALL),
    "everything": (ONE, [1.0], ALL),
    "some layers": (ONE, [0.75], MIXED),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_gguf(path, "qwen3_moe", "Q4_0", num_hidden_layers=LAYERS, num_experts=EXPERTS, num_experts_per_tok=4)
    return open_model(path)


def place(model: Model, shares: list[float], dense: tuple[int, ...]) -> Placement:
    return random_placement(model.spec, shares, seed=3, dense=dense)


@pytest.fixture(scope="module")
def traces(model: Model) -> dict[int, RoutingTrace]:
    """What streams choose, by their number: the same wherever experts lie, so that the CPU alone tells it. The steps
    come several times, as if they were many."""
    recorded = {}
    with timed(model, place(model, [0.0], ())) as machine:
        for streams, steps in STEPS.items():
            for _ in range(REPEATS):
                machine.decode(streams, steps)
            recorded[streams] = machine.recorder.take()
    return recorded


@pytest.mark.parametrize("name", PLACEMENTS)
def test_a_decode_step_takes_what_was_predicted(name: str, model: Model, traces: dict[int, RoutingTrace]) -> None:
    cards, shares, dense = PLACEMENTS[name]
    placement = place(model, shares, dense)
    with timed(model, placement, cards) as machine:
        for streams, steps in STEPS.items():
            found, traffic = machine.decode(streams, steps)
            expected = machine.predicted(traces[streams]).decode(placement, traffic)
            assert found == pytest.approx(expected.step_ms, rel=WITHIN)


@pytest.mark.parametrize("name", PLACEMENTS)
def test_a_prompt_takes_what_was_predicted(name: str, model: Model) -> None:
    cards, shares, dense = PLACEMENTS[name]
    placement = place(model, shares, dense)
    with timed(model, placement, cards) as machine:
        found, traffic = machine.prefill(112, 56)
        expected = machine.predicted().prefill(placement, traffic, staging=False)
    assert found == pytest.approx(expected.step_ms, rel=WITHIN)


def test_devices_work_at_once(model: Model) -> None:
    """With half the experts on a card a layer takes as long as the longer half, not as both."""
    half, none = (place(model, [share], ()) for share in (0.5, 0.0))
    free = {"read_gb_s": 1e6, "launch_us": 0.0, "hop_us": 0.0, "to_gb_s": 1e6, "from_gb_s": 1e6}
    slow = {"read_gb_s": 0.2}

    def step_ms(placement: Placement, card: dict[str, float], cpu_times: dict[str, float]) -> float:
        with timed(model, placement, [card], cpu_times) as machine:
            return machine.decode(4, steps=4)[0]

    alone, of_cpu, both = step_ms(none, {}, {}), step_ms(half, free, {}), step_ms(half, {}, {})
    assert of_cpu < 0.8 * alone
    assert both == pytest.approx(of_cpu, rel=0.02)  # the card's half is hidden behind the CPU's
    longer = step_ms(half, slow, {"call_us": 0.0, "expert_us": 0.0})
    assert step_ms(half, slow, {"call_us": 20.0, "expert_us": 2.0}) == pytest.approx(
        longer, rel=0.02
    )  # and this behind it
