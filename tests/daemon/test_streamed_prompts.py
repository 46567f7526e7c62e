"""Experts in RAM are streamed to an accelerator for a chunk of a prompt where the cost model says that this is faster;
what a model says is the same."""

import numpy as np
import pytest
from isotherm.daemon.step import Chunk, StepPlan
from isotherm.experts.errors import CacheLostError
from isotherm.experts.hybrid_executor import HybridExecutor
from isotherm.experts.model import Model, open_model
from isotherm.gpu_kernels.device_spec import Spec
from isotherm.gpu_kernels.emulated import Emulated
from isotherm.gpu_kernels.faults import Fault
from isotherm.placement.cost import CostModel
from isotherm.placement.machine import Machine
from isotherm.placement.shape import CPU
from support.engines import engine
from support.hybrid import LIMITS, hybrid, random_placement, residency_of
from support.modelled import Timed, lane, timed
from support.tiny import VOCAB_SIZE, write_gguf

LAYERS, EXPERTS, TOP_K = 3, 20, 4
CHUNK = 64
SLOW_CPU = {"expert_us": 60.0, "call_us": 5.0}  # of which a link brings one in about 6
HOME, GUEST = (0,) * (LAYERS + 2), ()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    sizes = {"num_hidden_layers": LAYERS, "num_experts": EXPERTS, "num_experts_per_tok": TOP_K}
    write_gguf(path, "qwen3_moe", {"": "Q4_0", "down_proj": "Q8_0"}, **sizes)
    return open_model(path)


def streamed(machine: Timed) -> int:
    assert isinstance(machine.runner.executor, HybridExecutor)
    return machine.runner.executor.bytes_streamed


@pytest.mark.parametrize("dense", [HOME, GUEST], ids=["home", "guest"])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_a_streamed_prompt_takes_what_was_predicted(share: float, dense: tuple[int, ...], model: Model) -> None:
    placement = random_placement(model.spec, [share], seed=3, dense=dense)
    found, expected = {}, {}
    for streaming in (False, True):
        with timed(model, placement, cpu_times=SLOW_CPU, streaming=streaming) as machine:
            found[streaming], traffic = machine.prefill(CHUNK, CHUNK)
            assert (streamed(machine) > 0) == streaming
            expected[streaming] = machine.predicted().prefill(placement, traffic, staging=streaming).step_ms
    assert found[True] < 0.9 * found[False]
    assert found[True] == pytest.approx(expected[True], rel=0.05)
    assert found[False] == pytest.approx(expected[False], rel=0.05)


@pytest.mark.parametrize("dense, card", [(GUEST, {"to_gb_s": 0.02}), (HOME, {"launch_us": 300.0})])
def test_nothing_is_streamed_where_the_cpu_is_as_fast(
    dense: tuple[int, ...], card: dict[str, float], model: Model
) -> None:
    placement = random_placement(model.spec, [0.3], seed=3, dense=dense)
    with timed(model, placement, [card], streaming=True) as machine:
        machine.prefill(CHUNK, CHUNK)
        assert streamed(machine) == 0


def test_streaming_begins_at_the_break_even(model: Model) -> None:
    """With launches that take so long that a card pays from some tokens on."""
    placement, begins = random_placement(model.spec, [0.0], seed=3, dense=HOME), 0
    for launch_us in range(60, 240, 20):
        with timed(model, placement, [{"launch_us": float(launch_us)}], streaming=True) as machine:
            begins = CostModel(machine.shape, machine.hardware).break_even(0, 0)
            if 24 <= begins <= 44:
                found = {}
                for tokens in (round(0.7 * begins), round(1.4 * begins)):
                    before = streamed(machine)
                    machine.prefill(tokens, tokens, seed=tokens)
                    found[tokens] = streamed(machine) > before
                assert list(found.values()) == [False, True]
                return
    raise AssertionError(f"no card begins to pay within a chunk: the last at {begins}")


@pytest.mark.parametrize("late", [None, 1, 2])
@pytest.mark.parametrize(
    "dense, shares",
    [
        (HOME, [0.3]),
        (GUEST, [0.3]),
        ((CPU, 0, CPU, 0, CPU), [0.3]),
        (GUEST, [0.2, 0.3]),
        ((0, 1, CPU, 0, 1), [0.2, 0.3]),
    ],
    ids=["home", "guest", "some layers", "two cards", "everywhere"],
)
def test_streaming_changes_no_bit(dense: tuple[int, ...], shares: list[float], late: int | None, model: Model) -> None:
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, VOCAB_SIZE, 3 * CHUNK // 2).tolist()
    steps = [
        StepPlan((Chunk("a", tokens[:CHUNK], 0, lane(0, CHUNK), True),)),
        StepPlan((
            Chunk("a", tokens[CHUNK:], CHUNK, lane(0, len(tokens)), True),
            Chunk("b", tokens[:9], 0, lane(1, 9), True),
        )),
    ]  # fmt: skip
    with engine(model.checkpoint.path, **LIMITS) as alone:
        expected = [alone.execute(step).copy() for step in steps]
    placement = random_placement(model.spec, shares, seed=5, dense=dense)
    with timed(model, placement, [{} for _ in shares], SLOW_CPU, streaming=True, late=late) as machine:
        for step, logits in zip(steps, expected, strict=True):
            np.testing.assert_array_equal(machine.runner.execute(step), logits)
        assert streamed(machine) > 0


@pytest.mark.parametrize("kind", ["copy", "launch", "hang"])
@pytest.mark.parametrize("cards", [1, 2])
def test_a_card_that_fails_while_experts_are_on_their_way_is_done_without(
    kind: Fault, cards: int, model: Model
) -> None:
    step = StepPlan((Chunk("a", list(range(CHUNK)), 0, lane(0, CHUNK), True),))
    with engine(model.checkpoint.path, **LIMITS) as alone:
        expected = alone.execute(step).copy()
    placement = random_placement(model.spec, [0.2] * cards, seed=5)
    with timed(model, placement, [{}] * cards, SLOW_CPU, streaming=True) as machine:
        device = residency_of(machine.runner).accelerators[0]
        assert isinstance(device, Emulated)
        device.faults.fail(kind, after=8)
        np.testing.assert_array_equal(machine.runner.execute(step), expected)
        assert device.used_bytes == 0
        before = streamed(machine)
        np.testing.assert_array_equal(machine.runner.execute(step), expected)
        assert (streamed(machine) > before) == (cards > 1)  # the other one goes on


@pytest.mark.parametrize(
    "dense, shares, goes_on",
    [
        ((0, 0, CPU, 1, 0), [0.3, 0.3], True),
        ((0, 0, CPU, 1, 0), [0.3, 0.0], False),
        ((0, 0, 0, 0, 0), [0.3, 0.3], True),
    ],
    ids=["prepared", "not prepared", "only experts"],
)
def test_the_layers_of_a_card_that_fails_are_streamed_to_another_that_is_prepared_for_them(
    dense: tuple[int, ...], shares: list[float], goes_on: bool, model: Model
) -> None:
    step = StepPlan((Chunk("a", list(range(CHUNK)), 0, lane(0, CHUNK), True),))
    with engine(model.checkpoint.path, **LIMITS) as alone:
        expected = alone.execute(step).copy()
    placement = random_placement(model.spec, shares, seed=5, dense=dense)
    with timed(model, placement, [{}] * 2, SLOW_CPU, streaming=True) as machine:
        device = residency_of(machine.runner).accelerators[0]
        assert isinstance(device, Emulated)
        device.faults.fail("launch", after=8)
        with pytest.raises(CacheLostError, match="emulated:0"):
            machine.runner.execute(step)
        assert device.used_bytes == 0
        before = streamed(machine)
        np.testing.assert_array_equal(machine.runner.execute(step), expected)
        assert (streamed(machine) > before) == goes_on


def test_an_accelerator_without_room_for_staging_is_noted_and_does_without(model: Model) -> None:
    notes: list[tuple[str, str]] = []
    placement = random_placement(model.spec, [0.0], seed=3)
    with timed(model, placement, cpu_times=SLOW_CPU, streaming=True) as machine:
        assert isinstance(machine.runner.executor, HybridExecutor)
        needed = machine.runner.executor.residency.accelerators[0].used_bytes
    with hybrid(
        model,
        placement,
        [Emulated(Spec(vram_bytes=needed - 1))],
        streaming=Machine(machine.hardware, machine.shape),
        note=lambda name, detail: notes.append((name, detail)),
    ) as runner:
        runner.execute(StepPlan((Chunk("a", list(range(CHUNK)), 0, lane(0, CHUNK), True),)))
    assert [name for name, _ in notes] == ["streaming_off"]
    assert "staging of streamed experts" in notes[0][1]
