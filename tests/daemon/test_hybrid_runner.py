"""What runs where on a CPU with accelerators, and what becomes of a step when one of them fails."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from isotherm.cpu_kernels.team import Team
from isotherm.daemon.runner import DecoderRunner, load_runner
from isotherm.experts.acceleration import Acceleration
from isotherm.experts.bank import parts_of
from isotherm.experts.errors import CacheLostError, DeviceFullError
from isotherm.experts.model import Model, open_model
from isotherm.experts.pack import PackedWeights, pack
from isotherm.experts.transfer import runs_of
from isotherm.gpu_kernels.device import DeviceError
from isotherm.gpu_kernels.reference import TorchKernels
from isotherm.placement.shape import CPU
from support.engines import Logits, engine, feed
from support.hybrid import LIMITS, emulated, hybrid, placed, random_placement, residency_of
from support.tiny import write_gguf

TOKENS, TABLE = [3, 1, 4, 1, 5], (2, 0, 1)
GIB = 1 << 30


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Three layers of eight experts and a shared one."""
    path: Path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_gguf(path, "qwen2_moe", "Q8_0", num_hidden_layers=3)
    return open_model(path)


@pytest.fixture(scope="module")
def expected(model: Model) -> Logits:
    with engine(model.checkpoint.path, **LIMITS) as runner:
        return feed(runner, TOKENS, 0, TABLE)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many ops each program had that the CPU team ran."""
    sizes: list[int] = []
    run = Team.run

    def counted(self, program, step):  # type: ignore[no-untyped-def]
        sizes.append(program.rows.shape[1])
        run(self, program, step)

    monkeypatch.setattr(Team, "run", counted)
    yield sizes


def ruin(weights: PackedWeights, layer: int, expert: int) -> None:
    """Make the copy in RAM useless."""
    for matrix in parts_of(weights, layer, expert):
        for run in runs_of(weights, matrix):
            run[:] = 0x7F


def where(*layers: object) -> list[np.ndarray]:
    return [np.full(8, lies, np.int8) for lies in layers]


def test_layers_without_hot_experts_are_one_program_and_touch_no_device(
    model: Model, expected: Logits, runs: list[int]
) -> None:
    accelerators = emulated(GIB)
    with hybrid(model, placed(model.spec, where(CPU, CPU, CPU)), accelerators) as runner:
        accelerators[0].faults.fail("copy", forever=True)
        accelerators[0].faults.fail("launch", forever=True)
        np.testing.assert_array_equal(feed(runner, TOKENS, 0, TABLE), expected)
        assert len(runs) == 1
        accelerators[0].faults.mend()


def test_layers_around_a_split_one_are_one_program_each_side(model: Model, expected: Logits, runs: list[int]) -> None:
    with hybrid(model, placed(model.spec, where(CPU, 0, CPU)), emulated(GIB)) as runner:
        np.testing.assert_array_equal(feed(runner, TOKENS, 0, TABLE), expected)
    before, shared, after = runs
    assert shared == 1 and before > 10 and after > 10


def test_a_hot_expert_is_not_computed_by_the_cpu(model: Model, expected: Logits) -> None:
    weights = pack(model)
    accelerators = emulated(GIB)
    acceleration = Acceleration(
        accelerators=accelerators, kernels=[TorchKernels()], placement=random_placement(model.spec, [0.5], seed=1)
    )
    runner = load_runner(model, acceleration=acceleration, weights=weights, **LIMITS)
    for layer, lies in enumerate(acceleration.placement.experts):
        for expert in np.flatnonzero(lies == 0):
            ruin(weights, layer, int(expert))
    np.testing.assert_array_equal(feed(runner, TOKENS, 0, TABLE), expected)
    runner.close()


@pytest.mark.parametrize(
    "share", [0.0, 0.1, 1.0]
)  # of what it would take: nothing, some of the buffers, all but a byte
def test_a_placement_that_does_not_fit_is_refused_and_takes_nothing(share: float, model: Model) -> None:
    placement, roomy = random_placement(model.spec, [0.5, 0.5], seed=1), emulated(GIB, GIB)
    with hybrid(model, placement, roomy):
        needed = roomy[1].used_bytes
    accelerators = emulated(GIB, max(int(needed * share) - 1, 0))
    refused = pytest.raises(DeviceFullError, match=r"emulated:1.*make a plan for less memory")
    with refused, hybrid(model, placement, accelerators):
        pass
    assert [accelerator.used_bytes for accelerator in accelerators] == [0, 0]


def kinds_of_failure(runner: DecoderRunner, kind: str) -> None:
    accelerator = residency_of(runner).accelerators[0]
    accelerator.faults.fail(kind, after=3)  # type: ignore[attr-defined]


@pytest.mark.parametrize("late", [None, 3])
@pytest.mark.parametrize("kind", ["copy", "launch", "hang"])
def test_a_step_in_which_an_accelerator_fails_is_done_without_it(
    kind: str, late: int | None, model: Model, expected: Logits
) -> None:
    accelerators, told = emulated(GIB, GIB, late=late), []
    acceleration = Acceleration(
        accelerators=accelerators,
        kernels=[TorchKernels(), TorchKernels()],
        placement=random_placement(model.spec, [0.5, 0.25], seed=1),
        note=lambda name, detail: told.append((name, detail)),
    )
    runner = load_runner(model, acceleration=acceleration, **LIMITS)
    kinds_of_failure(runner, kind)
    np.testing.assert_array_equal(feed(runner, TOKENS, 0, TABLE), expected)
    assert [name for name, _ in told] == ["accelerator_lost"] and "emulated:0" in told[0][1]
    assert accelerators[0].used_bytes == 0
    residency_of(runner).check_integrity()
    assert {int(lies) for layer in residency_of(runner).where for lies in layer} == {CPU, 1}
    np.testing.assert_array_equal(feed(runner, TOKENS, 0, TABLE), expected)
    runner.close()
    assert accelerators[1].used_bytes == 0


def test_of_an_accelerator_with_a_part_of_the_cache_keys_and_values_are_lost(model: Model, expected: Logits) -> None:
    accelerators = emulated(GIB)
    with hybrid(model, random_placement(model.spec, [0.5], 1, dense=[CPU, CPU, 0, CPU, CPU]), accelerators) as runner:
        accelerators[0].faults.fail("launch", after=2)
        with pytest.raises(CacheLostError, match="emulated:0"):
            feed(runner, TOKENS, 0, TABLE)
        np.testing.assert_array_equal(feed(runner, TOKENS, 0, TABLE), expected)
        assert accelerators[0].used_bytes == 0


def test_where_all_lies_on_an_accelerator_the_cpu_runs_nothing_but_what_groups_tokens(
    model: Model, expected: Logits, runs: list[int]
) -> None:
    placement = random_placement(model.spec, [1.0], seed=1, dense=[0] * 5)
    with hybrid(model, placement, emulated(GIB, late=2)) as runner:
        np.testing.assert_array_equal(feed(runner, TOKENS, 0, TABLE), expected)
    assert runs == [1]


def test_an_error_of_nobody_is_not_swallowed(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise DeviceError("of another sort")

    with hybrid(model, random_placement(model.spec, [0.5], seed=1), emulated(GIB)) as runner:
        with monkeypatch.context() as patch:
            patch.setattr(TorchKernels, "align", fails)
            with pytest.raises(DeviceError, match="of another sort"):
                feed(runner, TOKENS, 0, TABLE)
        feed(runner, TOKENS, 0, TABLE)
