"""Decoding replays what accelerators do between two points at which the host must act: few launches, the same bits."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from isotherm.cpu_kernels.team import Team
from isotherm.daemon.runner import DecoderRunner
from isotherm.daemon.step import Chunk, StepPlan
from isotherm.experts.errors import CacheLostError
from isotherm.experts.hybrid_executor import HybridExecutor
from isotherm.experts.model import Model, open_model
from isotherm.gpu_kernels.clock import Clock
from isotherm.gpu_kernels.device import DeviceMemoryError
from isotherm.gpu_kernels.reference import TorchKernels
from isotherm.placement.placed import Placement
from isotherm.placement.shape import CPU
from support.decoded import Counted, OneByOne, assert_alike, decoding, logits_of
from support.engines import engine
from support.hybrid import LIMITS, Restless, hybrid, placed, random_placement, residency_of
from support.modelled import lane, timed
from support.tiny import write_gguf

EXPERTS = 8
SOME = [0, 0, 1, CPU, 0, CPU, 1, 0]  # experts of every layer on two cards
Logits = list[np.ndarray]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Model]:
    """By the number of its layers; with a shared expert."""
    folder = tmp_path_factory.mktemp("models")

    @cache
    def write(layers: int) -> Model:
        path: Path = folder / f"{layers}.gguf"
        write_gguf(path, "qwen2_moe", "Q8_0", num_hidden_layers=layers)
        return open_model(path)

    return write


@pytest.fixture(scope="module")
def expected(model: Callable[[int], Model]) -> Logits:
    """Of three layers, on the CPU alone."""
    with engine(model(3).checkpoint.path, **LIMITS) as runner:
        return logits_of(runner, decoding())


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """One for each time that the CPU team was called."""
    called: list[int] = []
    run = Team.run

    def counted(self, program, step):  # type: ignore[no-untyped-def]
        called.append(program.rows.shape[1])
        run(self, program, step)

    monkeypatch.setattr(Team, "run", counted)
    yield called


def cards(count: int = 1, late: int | None = None, kind: type[Counted] = Counted) -> list[Counted]:
    clock = Clock()
    return [kind(number, clock, late) for number in range(count)]


def where(model: Model, experts: list[int], dense: tuple[int, ...]) -> Placement:
    """dense: of the embedding, of the layers and of the head."""
    return placed(model.spec, [np.array(experts, np.int8)] * model.spec.num_layers, dense)


def launches_of_a_step(model: Model, placement: Placement, calls: list[int]) -> tuple[int, int]:
    """And calls of the CPU, once everything was captured."""
    (card,) = cards()
    step = decoding([3])[0]
    with hybrid(model, placement, [card]) as runner:
        runner.execute(step)
        runner.execute(step)
        card.queued = 0
        calls.clear()
        runner.execute(step)
        return card.queued, len(calls)


@pytest.mark.parametrize("layers", [2, 4])
def test_a_whole_model_on_a_card_is_one_launch(layers: int, model: Callable[[int], Model], calls: list[int]) -> None:
    opened = model(layers)
    placement = where(opened, [0] * EXPERTS, (0,) * (layers + 2))
    assert launches_of_a_step(opened, placement, calls) == (1, 1)  # the CPU groups the tokens, for no layer


def test_a_run_of_whole_layers_is_one_launch_and_no_call_of_the_cpu(
    model: Callable[[int], Model], calls: list[int]
) -> None:
    one = where(model(3), [0] * EXPERTS, (CPU, CPU, 0, CPU, CPU))
    two = where(model(4), [0] * EXPERTS, (CPU, CPU, 0, 0, CPU, CPU))
    found = launches_of_a_step(model(3), one, calls)
    assert found[0] == 3  # and one for the experts of each layer of the CPU
    assert launches_of_a_step(model(4), two, calls) == found


@pytest.mark.parametrize("layers", [2, 4])
def test_a_layer_with_cold_experts_takes_three_launches(
    layers: int, model: Callable[[int], Model], calls: list[int]
) -> None:
    """Its own experts, the place of the others' outputs, and all up to the next layer's router."""
    opened = model(layers)
    placement = where(opened, [0, CPU] * (EXPERTS // 2), (0,) * (layers + 2))
    assert launches_of_a_step(opened, placement, calls)[0] == 1 + 3 * layers


@pytest.mark.parametrize("layers", [2, 4])
def test_experts_of_a_layer_of_the_cpu_are_one_launch(
    layers: int, model: Callable[[int], Model], calls: list[int]
) -> None:
    opened = model(layers)
    placement = where(opened, [0, CPU] * (EXPERTS // 2), (CPU,) * (layers + 2))
    assert launches_of_a_step(opened, placement, calls)[0] == layers


@pytest.mark.parametrize("late", [None, 5])
@pytest.mark.parametrize(
    "dense",
    [(CPU,) * 5, (0,) * 5, (0, 1, 0, 1, 1), (CPU, 0, CPU, 1, CPU), (1, 1, 0, CPU, 0)],
    ids=["CPU", "one card", "two cards", "in between", "CPU last"],
)
@pytest.mark.parametrize("experts", [SOME, [0] * EXPERTS], ids=["some", "all"])
def test_streams_that_come_and_go_change_no_bit(
    experts: list[int], dense: tuple[int, ...], late: int | None, model: Callable[[int], Model], expected: Logits
) -> None:
    used = cards(2, late)
    with hybrid(model(3), where(model(3), experts, dense), used) as runner:
        assert_alike(runner, decoding(), expected)
        captured = [card.captures for card in used]
        assert any(captured)
        assert_alike(runner, decoding(), expected)
        assert [card.captures for card in used] == captured


@pytest.mark.parametrize("dense", [CPU, 0])
def test_swaps_take_effect_without_another_capture(dense: int, model: Callable[[int], Model], expected: Logits) -> None:
    used = cards(2, late=7)
    with hybrid(model(3), where(model(3), SOME, (dense,) * 5), used) as runner:
        for _ in range(6):
            restless = Restless(runner, 3, wait=True)
            assert_alike(restless, decoding(), expected)  # type: ignore[arg-type]
            assert restless.swaps >= len(decoding())
        captured = [card.captures for card in used]
        assert_alike(Restless(runner, 4, wait=True), decoding(), expected)  # type: ignore[arg-type]
        assert [card.captures for card in used] == captured


@pytest.mark.parametrize("dense", [CPU, 0])
def test_memory_that_is_given_back_and_taken_again_is_not_replayed_upon(
    dense: int, model: Callable[[int], Model], expected: Logits
) -> None:
    (card,) = cards(late=2)
    with hybrid(model(3), where(model(3), [0] * 7 + [CPU], (dense,) * 5), [card]) as runner:
        assert isinstance(runner.executor, HybridExecutor)
        room, had = runner.executor.room, card.used_bytes
        assert_alike(runner, decoding(), expected)
        captured = card.captures
        room.set_limit(0, room.fixed_bytes(0) + (had - room.fixed_bytes(0)) // 2)
        assert_alike(runner, decoding(), expected)
        assert card.captures > captured
        captured = card.captures
        room.set_limit(0, had)
        while room.is_growing:
            room.go_on(lambda: True)
            assert_alike(runner, decoding([2, 8]), logits_of_the_cpu(model(3)))
        assert card.captures > captured


def logits_of_the_cpu(model: Model) -> Logits:
    with engine(model.checkpoint.path, **LIMITS) as runner:
        return logits_of(runner, decoding([2, 8]))


def test_a_whole_layer_that_loses_an_expert_asks_the_cpu_again(
    model: Callable[[int], Model], expected: Logits, calls: list[int]
) -> None:
    (card,) = cards(late=3)
    with hybrid(model(3), where(model(3), [0] * EXPERTS, (0,) * 5), [card]) as runner:
        assert_alike(runner, decoding(), expected)
        for layer in range(3):
            for expert in (1, 4, 6):
                residency_of(runner).evict(layer, expert)
        calls.clear()
        assert_alike(runner, decoding(), expected)
        assert len(calls) > 2 * len(decoding())
        for layer in range(3):
            for expert in (1, 4, 6):
                residency_of(runner).load(layer, expert, 0)
        residency_of(runner).settle(wait=True)
        calls.clear()
        assert_alike(runner, decoding(), expected)
        assert len(calls) == len(decoding())


@pytest.mark.parametrize("kind", ["launch", "hang", "copy"])
def test_an_accelerator_that_fails_in_a_replay_is_done_without(
    kind: str, model: Callable[[int], Model], expected: Logits
) -> None:
    used, told = cards(2, late=4), []
    placement = where(model(3), SOME, (1,) * 5)
    with hybrid(model(3), placement, used, note=lambda name, detail: told.append(name)) as runner:
        assert_alike(runner, decoding(), expected)
        used[0].faults.fail(kind, after=2)  # type: ignore[arg-type]
        captured = used[1].captures
        assert_alike(runner, decoding(), expected)
        assert told == ["accelerator_lost"]
        assert used[0].used_bytes == 0
        assert used[1].captures > captured  # steps are numbered anew
        assert_alike(runner, decoding(), expected)


def test_layers_of_one_that_fails_in_a_replay_are_the_cpus_and_the_others_capture_anew(
    model: Callable[[int], Model], expected: Logits
) -> None:
    """Keys and values are lost, so that streams begin again."""
    used = cards(2)
    with hybrid(model(3), where(model(3), SOME, (0, 0, 1, 0, 1)), used) as runner:
        assert_alike(runner, decoding(), expected)
        used[0].faults.fail("launch")
        with pytest.raises(CacheLostError, match="a launch failed"):
            runner.execute(decoding([3])[0])
        captured = used[1].captures
        assert_alike(runner, decoding(), expected)
        assert used[1].captures > captured and used[0].used_bytes == 0


@pytest.mark.parametrize("dense", [CPU, 0])
def test_where_memory_runs_out_while_capturing_experts_are_shed_and_nothing_is_kept(
    dense: int, model: Callable[[int], Model], expected: Logits, monkeypatch: pytest.MonkeyPatch
) -> None:
    (card,), told, left = cards(), [], [2]
    down = TorchKernels.down

    def full(*args: object) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise DeviceMemoryError("no room")
        down(*args)  # type: ignore[arg-type]

    placement = where(model(3), [0] * 4 + [CPU] * 4, (dense,) * 5)
    with hybrid(model(3), placement, [card], note=lambda name, detail: told.append(name)) as runner:
        monkeypatch.setattr(TorchKernels, "down", staticmethod(full))
        before = card.used_bytes
        assert_alike(runner, decoding(), expected)
        assert told == ["accelerator_out_of_memory"]
        assert card.used_bytes < before


@pytest.mark.parametrize("dense", [CPU, 0])
def test_kernels_that_no_graph_can_have_are_launched_one_by_one_which_is_said_once(
    dense: int, model: Callable[[int], Model], expected: Logits
) -> None:
    used, told = cards(1, late=6, kind=OneByOne), []
    placement = where(model(3), SOME[:2] * 4, (dense,) * 5)
    with hybrid(model(3), placement, used, note=lambda *event: told.append(event)) as runner:
        assert_alike(runner, decoding(), expected)
        assert_alike(runner, decoding(), expected)
    assert [card.captures for card in used] == [0]
    assert [name for name, _ in told] == ["launched_one_by_one"]
    assert told[0][1].startswith("the kernels of emulated:0")


def test_prompts_are_not_captured(model: Callable[[int], Model]) -> None:
    (card,) = cards(late=1)
    steps = [
        StepPlan((Chunk("a", list(range(9)), 0, lane(0, 9), True),)),  # more than run at once
        StepPlan((Chunk("a", list(range(5)), 9, lane(0, 14), True), Chunk("b", [4], 0, lane(1, 1), True))),
        StepPlan((Chunk("a", [3], 14, lane(0, 15), False),)),
    ]
    with engine(model(3).checkpoint.path, **LIMITS) as runner:
        expected = logits_of(runner, steps)
    with hybrid(model(3), where(model(3), SOME[:2] * 4, (0,) * 5), [card]) as runner:
        for step, logits in zip(steps, expected, strict=True):
            np.testing.assert_array_equal(runner.execute(step), logits)
            choices = runner.choices()  # in the last layer only of some tokens
            assert choices is not None and ((choices.ids >= 0) & (choices.ids < EXPERTS)).all()
    assert card.captures == 0


def test_rows_beyond_the_tokens_are_none_of_a_larger_step_before(model: Callable[[int], Model]) -> None:
    """Whose logits were those of its rows 8, 17 and so on."""
    prompts = StepPlan(tuple(Chunk(str(n), list(range(9)), 0, lane(n, 9), True) for n in range(4)))
    three = StepPlan(tuple(Chunk(str(n), [7 + n], 9, lane(n, 10), True) for n in range(3)))
    with engine(model(3).checkpoint.path, **LIMITS) as runner:
        expected = logits_of(runner, [prompts, three])
    with hybrid(model(3), where(model(3), [0] * EXPERTS, (0,) * 5), cards()) as runner:
        assert_alike(runner, [prompts, three], expected)


def test_a_layer_gets_its_first_experts_after_all_else_was_captured(
    model: Callable[[int], Model], expected: Logits
) -> None:
    (card,) = cards(late=3)
    with hybrid(model(3), where(model(3), [0, 0] + [CPU] * 6, (0,) * 5), [card]) as runner:
        residency = residency_of(runner)
        moved = [(layer, expert) for layer in range(3) for expert in (0, 1)]
        for layer, expert in moved:
            residency.evict(layer, expert)
        assert_alike(runner, decoding(), expected)
        captured = card.captures
        for layer, expert in moved:
            residency.load(layer, expert, 0)
        residency.settle(wait=True)
        assert_alike(runner, decoding(), expected)
        assert card.captures > captured


@pytest.mark.parametrize("dense", [CPU, 0])
def test_large_steps_that_may_stream_replay_what_is_theirs(dense: int, model: Callable[[int], Model]) -> None:
    """Layers of the CPU without experts on the card are among those that may stream, which numbers other steps."""
    opened, sizes = model(3), [4, 20, 5, 17, 16, 12, 20, 4]
    limits = LIMITS | {"max_running": 32, "num_blocks": 256}
    steps = decoding(sizes, streams=32)
    with engine(opened.checkpoint.path, **limits) as runner:
        expected = logits_of(runner, steps)
    placement = random_placement(opened.spec, [0.0], 1, dense=(dense, CPU, dense, dense, dense))
    slow = {"call_us": 2000.0, "expert_us": 200.0}
    with timed(opened, placement, [{}], slow, streaming=True, **limits) as machine:
        assert_alike(machine.runner, steps, expected)
        assert_alike(machine.runner, steps, expected)
        assert isinstance(machine.runner.executor, HybridExecutor)
        assert machine.runner.executor.bytes_streamed > 0


def test_choices_are_those_of_the_cpu(model: Callable[[int], Model]) -> None:
    def chosen(runner: DecoderRunner) -> list[np.ndarray]:
        found = []
        for step in decoding():
            runner.execute(step)
            choices = runner.choices()
            assert choices is not None
            found += [choices.ids.copy(), choices.weights.copy()]
        return found

    with engine(model(3).checkpoint.path, **LIMITS) as runner:
        expected = chosen(runner)
    with hybrid(model(3), where(model(3), [0] * EXPERTS, (0, 0, 1, 0, 1)), cards(2, late=1)) as runner:
        for got, wanted in zip(chosen(runner), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_contexts_grow_beyond_what_graphs_were_made_for(tmp_path: Path) -> None:
    """From 1024 positions on the block tables of a step are wider."""
    write_gguf(tmp_path / "tiny.gguf", "qwen2_moe", "Q8_0", num_hidden_layers=1, max_position_embeddings=1088)
    opened, (card,) = open_model(tmp_path / "tiny.gguf"), cards()
    limits = LIMITS | {"max_context": 1088, "num_blocks": 80, "max_step_tokens": 512}
    tables = (tuple(range(68)), (70,))

    def later(runner: DecoderRunner) -> Logits:
        for start in (0, 511):
            runner.execute(StepPlan((Chunk("a", [7] * 511, start, tables[0][: start // 16 + 33], False),)))
        steps = [
            StepPlan((Chunk("a", [3], end, tables[0], True), Chunk("b", [5], number, tables[1], True)))
            for number, end in enumerate((1022, 1023, 1024, 1025))
        ]
        return logits_of(runner, steps)

    with engine(opened.checkpoint.path, **limits) as runner:
        expected = later(runner)
    with hybrid(opened, where(opened, [0] * EXPERTS, (0,) * 3), [card], **limits) as runner:
        for found, wanted in zip(later(runner), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
    assert card.captures == 2
