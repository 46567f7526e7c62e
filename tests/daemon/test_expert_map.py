"""What is told of experts and speed: recent choices, where experts lie, what is on its way, predicted and measured."""

from pathlib import Path

import numpy as np
import pytest
from isotherm.daemon.expert_use import HALF_LIFE
from isotherm.daemon.recent_use import RecentUse
from isotherm.placement.plan_file import save_plan, to_json
from isotherm.placement.shape import CPU
from support.accelerated import CARD, assembled, config, plan_of
from support.engine_runs import messages_of, request
from support.hybrid import residency_of
from support.kept_machine import keep_profile
from support.plans import GIB
from support.tiny import write_gguf

pytestmark = pytest.mark.usefixtures("own_folders")
HOT = [0, CPU, 0, CPU, 0, 0, CPU, 0]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two layers of eight experts, two of them for each token."""
    write_gguf(tmp_path / "tiny.gguf", "qwen3_moe", "Q4_0")
    keep_profile(threads=2)
    return tmp_path / "tiny.gguf"


def test_older_choices_fade() -> None:
    use = RecentUse(1, 2)
    use.add(np.array([[8, 0]]), 8)
    use.add(np.array([[0, HALF_LIFE]]), HALF_LIFE)
    np.testing.assert_allclose(use.counts, [[4.0, HALF_LIFE]])
    assert use.tokens == pytest.approx(4 + HALF_LIFE)


def test_what_the_cpu_alone_decoded_and_read_is_told_by_layer(model: Path) -> None:
    with assembled(config(model)) as assembly:
        before = assembly.experts.show("decode")
        messages_of(assembly.engine.client.submit(request("a", (3, 1, 4, 1, 5), max_tokens=6)))
        after = {phase: assembly.experts.show(phase) for phase in ("decode", "prefill")}
    assert (before["tokens"], before["heat"].tolist()) == (0.0, [[1.0] * 8] * 2)
    assert (after["decode"]["tokens"], after["prefill"]["tokens"]) == (5.0, 5.0)
    heat = after["decode"]["heat"]
    np.testing.assert_allclose(heat * 5 * 2 / 8, np.round(heat * 5 * 2 / 8), atol=0.01)  # whole choices
    assert heat.shape == (2, 8) and np.allclose(heat.mean(axis=1), 1.0, atol=0.01)
    assert after["decode"]["where"].tolist() == [[0] * 8] * 2
    assert (after["decode"]["devices"], after["decode"]["layers"], after["decode"]["top_k"]) == (["ram"], (0, 1), 2)


def test_experts_on_accelerators_and_on_their_way_are_told(model: Path, tmp_path: Path) -> None:
    save_plan(plan_of(model, experts=HOT), tmp_path / "plan.json")
    given = config(model, "emulated:vram=1GiB", context=None, plan=tmp_path / "plan.json")
    with assembled(given, start=False) as assembly:
        shown = assembly.experts.show("decode")
        assert shown["devices"] == ["ram", "gpu0"]
        assert shown["where"].tolist() == [[1, 0, 1, 0, 1, 1, 0, 1], [0] * 8]
        assert shown["coming"] == []
        residency = residency_of(assembly.runner)
        residency.evict(0, 2)
        residency.load(0, 1, 0)
        keeper = assembly.experts._keeper
        assert keeper is not None
        keeper.between_steps(None)
        shown = assembly.experts.show("decode")
        assert shown["where"].tolist()[0] == [1, 0, 0, 0, 1, 1, 0, 1]
        assert shown["coming"] == [(0, 1, 1)]


def test_a_dense_model_has_no_map(tmp_path: Path) -> None:
    write_gguf(tmp_path / "dense.gguf", "llama", "Q4_0")
    with assembled(config(tmp_path / "dense.gguf"), start=False) as assembly:
        shown = assembly.experts.show("decode")
    assert (shown["layers"], shown["experts"], shown["heat"], shown["where"]) == ([], 0, [], [])


def test_speed_and_plan_are_told_with_and_without_accelerators(model: Path, tmp_path: Path) -> None:
    with assembled(config(model)) as assembly:
        messages_of(assembly.engine.client.submit(request("a", (3, 1, 4), max_tokens=4)))
        assert assembly.plan_json() is None
        speed = assembly.status()["speed"]
        assert speed["predicted"] is None and speed["measured"]["decode_tok_s"] > 0
    plan = plan_of(model, experts=[CPU] * 8, card=GIB)
    save_plan(plan, tmp_path / "plan.json")
    with assembled(config(model, context=None, plan=tmp_path / "plan.json"), start=False) as assembly:
        assert assembly.plan_json() == to_json(plan)
        foretold = assembly.status()["speed"]["predicted"]
        assert foretold["decode_tok_s"]["value"] == plan.predicted_decode_tok_s.value
    with assembled(config(model, CARD), start=False) as assembly:
        status = assembly.status()
        assert status["speed"] == {name: status["accelerators"][name] for name in ("predicted", "measured")}
