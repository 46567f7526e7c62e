"""Traffic moves from one topic to another: experts follow it by themselves, and no answer changes."""

from pathlib import Path

import numpy as np
import pytest
from isotherm.experts.model import Model, open_model
from isotherm.gpu_kernels.device_spec import Spec
from isotherm.gpu_kernels.emulated import Emulated
from isotherm.placement.rebalance import Swap
from isotherm.placement.shape import CPU
from support.hybrid import emulated, placed
from support.rebalanced import (
    EXPERT_BYTES,
    EXPERTS,
    RULES,
    ask,
    dead_after,
    rebalanced,
    said_by_the_cpu,
    topics,
    write_model,
)

MIB = 1 << 20
TOKENS = 100
EXPERT_MS = 2.0  # over the link


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(path)
    return open_model(path)


@pytest.fixture(scope="module")
def talk(model: Model) -> tuple[list[int], list[int]]:
    """Two topics."""
    return topics(model.checkpoint.path)


def test_experts_follow_the_traffic(
    model: Model, talk: tuple[list[int], list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = Emulated(Spec(vram_bytes=8 * MIB, to_gb_s=EXPERT_BYTES / EXPERT_MS / 1e6))
    expected = [said_by_the_cpu(model, topic, 3, TOKENS) for topic in talk]
    with rebalanced(model, [card], tmp_path / "history.json") as served:
        rounds: dict[int, int] = {}  # bytes by the step before which they were sent off
        swap = served.residency.swap

        def watched(swaps: tuple[Swap, ...]) -> None:
            assert len(served.steps.hits) not in rounds
            rounds[len(served.steps.hits)] = sum(one.nbytes for one in swaps)
            swap(swaps)

        monkeypatch.setattr(served.residency, "swap", watched)
        assert ask(served.client, talk[0], 3, TOKENS) == expected[0]
        moved = len(served.steps.hits)
        assert served.steps.rate(0, moved) > 0.8
        for _ in range(2):
            assert ask(served.client, talk[1], 3, TOKENS) == expected[1]
        assert served.steps.rate(moved, moved + 20) < 0.45
        assert served.steps.rate(-60) > 0.8
    assert served.events.counts() == {}
    assert 0 < max(rounds.values()) <= RULES.step_bytes
    took = np.array(served.steps.seconds)
    begun = [step for step in rounds if step < len(took)]
    quiet = np.delete(took, begun)
    assert took[begun].max() <= quiet.max() + RULES.step_bytes / EXPERT_BYTES * EXPERT_MS / 1e3


def test_experts_move_on_two_accelerators_one_of_which_has_a_layer(
    model: Model, talk: tuple[list[int], list[int]], tmp_path: Path
) -> None:
    experts = [np.repeat(np.array([0, 1, CPU, CPU], np.int8), EXPERTS // 4)] * 2
    planned = placed(model.spec, experts, dense=(CPU, CPU, 1, 0))
    cards = emulated(8 * MIB, 4 * MIB, late=9)
    with rebalanced(model, cards, tmp_path / "history.json", planned) as served:
        for topic in reversed(talk):
            assert ask(served.client, topic, 3, TOKENS) == said_by_the_cpu(model, topic, 3, TOKENS)
        served.residency.settle(wait=True)
        served.residency.check_integrity()
        for layer, where in enumerate(served.residency.where):
            assert [int((where == device).sum()) for device in (0, 1)] == [EXPERTS // 4] * 2
            moved = where != planned.experts[layer]
            assert {int(device) for device in where[moved]} == {0, 1, CPU}
    assert served.events.counts() == {}


@pytest.mark.parametrize("moment", ["writing", "swapping"])
def test_a_daemon_killed_meanwhile_loses_no_history(
    moment: str, model: Model, talk: tuple[list[int], list[int]], tmp_path: Path
) -> None:
    file = tmp_path / "history.json"
    kept = dead_after(moment, 4, model, talk[1], file)
    assert kept == 3 + (moment == "swapping")
    assert bool(list(tmp_path.glob("*.part"))) == (moment == "writing")
    with rebalanced(model, emulated(8 * MIB), file) as served:
        assert not list(tmp_path.glob("*.part"))
        assert (served.known.made, len(served.known.rounds)) == (kept, kept)
        assert served.known.rates.sum() > 0.5
        for where, lies in zip(served.residency.where, served.known.where, strict=True):
            np.testing.assert_array_equal(where, lies)
        served.residency.check_integrity()
        assert ask(served.client, talk[1], 3, TOKENS) == said_by_the_cpu(model, talk[1], 3, TOKENS)
    assert served.events.counts() == {}
