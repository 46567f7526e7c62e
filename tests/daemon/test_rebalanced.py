"""A daemon that is put together with accelerators lets experts follow the traffic, and goes on there when it is started
again."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from isotherm.daemon.assembly import Assembly
from isotherm.daemon.errors import InvalidRequestError
from isotherm.daemon.paths import hardware_file, placement_file
from isotherm.daemon.placement_history import load_history
from isotherm.daemon.rebalance import Rebalance
from isotherm.daemon.vram import SetVram
from isotherm.placement.plan_file import save_plan
from isotherm.placement.shape import CPU
from support.accelerated import CARD, assembled, config, plan_of
from support.engine_runs import PATIENCE_S, messages_of, request, tokens_of, until
from support.hybrid import residency_of
from support.kept_machine import keep_profile
from support.tiny import write_gguf

pytestmark = pytest.mark.usefixtures("own_folders")
HOT = [0, CPU, 0, CPU, 0, 0, CPU, 0]
PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """Beside its model: half of the first layer's experts are on gpu0, all else is the CPU's."""
    write_gguf(tmp_path / "tiny.gguf", "qwen3_moe", "Q4_0")
    keep_profile(threads=2)
    save_plan(plan_of(tmp_path / "tiny.gguf", experts=HOT), tmp_path / "plan.json")
    return tmp_path / "plan.json"


@contextmanager
def serving(plan: Path) -> Iterator[Assembly]:
    with assembled(config(plan.with_name("tiny.gguf"), CARD, context=None, plan=plan)) as assembly:
        assert assembly.rebalanced is not None
        with assembly.rebalanced.keeping():
            yield assembly
            assembly.engine.stop()


def ask(assembly: Assembly, **fields: Any) -> dict[str, Any]:
    told: dict[str, Any] = assembly.engine.client.ask(Rebalance(**fields)).result(PATIENCE_S)
    return told


def where(assembly: Assembly) -> list[int]:
    return [int(lies) for lies in residency_of(assembly.runner).where[0]]


def say(assembly: Assembly, name: str, tokens: int = 40) -> list[int]:
    return tokens_of(messages_of(assembly.engine.client.submit(request(name, PROMPT, max_tokens=tokens))))


def test_what_traffic_led_to_outlives_the_daemon(plan: Path) -> None:
    with serving(plan) as assembly:
        said = say(assembly, "a")
        told = ask(assembly)
        assert told["automatic"] and told["rounds_made"] == 0 and not told["under_way"]
        fingerprint = assembly.model.checkpoint.fingerprint
    history = load_history(placement_file(fingerprint), fingerprint)
    assert history is not None and history.accelerators == ("emulated:0",)
    assert history.where.tolist() == [HOT, [CPU] * 8] and history.rates.sum(axis=1).min() > 0
    with serving(plan) as assembly:
        assert where(assembly) == HOT
        assert say(assembly, "a") == said
        assert "placement_planned_anew" not in assembly.engine.events.counts()


def test_experts_are_moved_when_that_is_asked_for_and_moved_back(plan: Path) -> None:
    with serving(plan) as assembly:
        ask(assembly, automatic=False)
        said = [say(assembly, str(n)) for n in range(8)]
        swaps = ask(assembly)["swaps"]
        assert swaps and all(swap["saving_ms"] > swap["transfer_ms"] for swap in swaps)
        ask(assembly, dry_run=False)
        until(lambda: not ask(assembly)["under_way"])
        moved = where(assembly)
        assert all(moved[swap["promoted"]] == 0 and moved[swap["demoted"]] == CPU for swap in swaps)
        assert [say(assembly, str(n)) for n in range(8)] == said
        ask(assembly, dry_run=False, back=True)
        until(lambda: not ask(assembly)["under_way"])
        assert where(assembly) == HOT


def test_memory_can_be_given_back_and_taken_again_meanwhile(plan: Path) -> None:
    with serving(plan) as assembly:
        residency, client = residency_of(assembly.runner), assembly.engine.client
        (card,) = residency.accelerators
        limits = card.used_bytes, card.used_bytes - residency.nbytes(0) // 2
        said = [say(assembly, str(n)) for n in range(4)]
        for limit in (limits[1], None, limits[1], None):
            client.ask(SetVram(limits={"gpu0": limit})).result(PATIENCE_S)
            assert [say(assembly, str(n)) for n in range(4)] == said
        until(lambda: where(assembly).count(0) == HOT.count(0))
        assert not {"attendant_stopped", "accelerator_lost"} & set(assembly.engine.events.counts())
        until(lambda: not ask(assembly)["under_way"])
        residency.check_integrity()


def test_nothing_moves_where_nothing_is_known_of_the_machine(plan: Path) -> None:
    hardware_file(2).unlink()
    with serving(plan) as assembly:
        assert assembly.engine.events.counts()["not_rebalanced"] == 1
        with pytest.raises(InvalidRequestError, match="measure it by: isotherm calibrate"):
            ask(assembly)


def test_where_no_expert_can_move_that_is_what_is_said(plan: Path) -> None:
    save_plan(plan_of(plan.with_name("tiny.gguf"), experts=[CPU] * 8), plan)
    told = "no layer has experts both on an accelerator and in RAM"
    with serving(plan) as assembly, pytest.raises(InvalidRequestError, match=told):
        ask(assembly)
