"""`serve --accelerator`: what is planned for, what is refused, and that the answers are those of the CPU alone."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from isotherm.daemon import named_accelerators
from isotherm.daemon.accelerated import accelerate
from isotherm.daemon.assembly import assemble
from isotherm.daemon.config import ConfigError
from isotherm.daemon.events import EventLog
from isotherm.daemon.memory import MemoryPlanError
from isotherm.daemon.paths import hardware_file
from isotherm.experts.acceleration import Acceleration
from isotherm.gpu_kernels.device_spec import parse_spec
from isotherm.placement.hardware_file import save_profile
from isotherm.placement.ledger import CONTEXT_BYTES, HEADROOM_BYTES, KV_STAGING_BYTES, RAM, Term
from isotherm.placement.plan import Plan, PlanError
from isotherm.placement.plan_file import load_plan, save_plan
from isotherm.placement.room import FitError
from isotherm.placement.shape import CPU
from support.accelerated import CARD, answers, assembled, config, plan_of
from support.cli import run
from support.hybrid import residency_of
from support.kept_machine import keep_profile
from support.plans import with_cards
from support.tiny import write_gguf

pytestmark = pytest.mark.usefixtures("own_folders")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two layers of eight experts."""
    write_gguf(tmp_path / "tiny.gguf", "qwen3_moe", "Q4_0")
    keep_profile(threads=2)
    return tmp_path / "tiny.gguf"


def test_answers_are_those_of_the_cpu_alone(model: Path) -> None:
    assert answers(config(model, CARD)) == answers(config(model))


@pytest.mark.parametrize(("card", "lies"), [(CARD, 0), ("emulated:vram=1GiB,launch=1ms", CPU)])
def test_a_plan_is_made_of_what_the_machine_and_its_accelerators_can_do(card: str, lies: int, model: Path) -> None:
    with assembled(config(model, card)) as assembly:
        assert [row.tolist() for row in residency_of(assembly.runner).where] == [[lies] * 8] * 2


def test_a_plan_is_obeyed(model: Path, tmp_path: Path) -> None:
    experts = [0, CPU, 1, CPU, 0, 1, 1, CPU]
    save_plan(plan_of(model, experts=experts), tmp_path / "plan.json")
    given = config(
        model, "emulated:vram=1GiB", "emulated:vram=1GiB,number=1", context=None, plan=tmp_path / "plan.json"
    )
    with assembled(given) as assembly:
        np.testing.assert_array_equal(residency_of(assembly.runner).where, [experts, [CPU] * 8])
        assert assembly.engine.client.max_context == 64
    assert answers(given) == answers(config(model))


@pytest.mark.parametrize("names", [(CARD,), ("emulated:vram=768MiB,launch=0us,hop=0us", "emulated:number=1,vram=1GiB")])
def test_a_plan_that_is_made_for_accelerators_by_name_is_served_on_them(
    names: tuple[str, ...], model: Path, tmp_path: Path
) -> None:
    options = [argument for name in names for argument in ("--accelerator", name)]
    made = run("plan", model, *options, "--context", 64, "--out", tmp_path / "plan.json")
    assert made.exit_code == 0, made.output
    plan = load_plan(tmp_path / "plan.json")
    assert [account.budget for account in plan.ledger[1:]] == [
        parse_spec(n.partition(":")[2]).vram_bytes for n in names
    ]
    assert 0 in plan.layers[0].experts
    given = config(model, *names, context=None, plan=tmp_path / "plan.json")
    with assembled(given) as assembly:
        np.testing.assert_array_equal(residency_of(assembly.runner).where, [layer.experts for layer in plan.layers])
    assert answers(given) == answers(config(model))


@pytest.mark.parametrize("of_another", [False, True])
@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("gpu7",), "'gpu7' is no accelerator; write cuda:0, or emulated:"),
        (("emulated:", "emulated:"), "there are two of emulated:0: give one of them number=1"),
        (("emulated:", "cuda:1"), "names cuda:1, and .* has (1|no) card$"),
    ],
)
def test_no_plan_is_made_for_what_is_no_accelerator(
    names: tuple[str, ...], told: str, of_another: bool, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine is this one, or another."""
    profile = model.parent / "machine.json"
    save_profile(with_cards(24 << 30), profile)
    monkeypatch.setattr(named_accelerators, "calibrate", lambda *_: with_cards())
    options = [argument for name in names for argument in ("--accelerator", name)]
    made = run("plan", model, *(("--hardware", profile) if of_another else ()), *options)
    assert made.exit_code == 2
    assert re.search(f"--accelerator:? {told}", made.stderr.strip().replace("\n", " ")), made.stderr


def test_a_plan_may_take_an_emulated_card_beside_one_of_another_machine(model: Path) -> None:
    profile = model.parent / "machine.json"
    save_profile(with_cards(24 << 30), profile)
    given = ("--hardware", profile, "--accelerator", CARD, "--accelerator", "cuda:0")
    for left_out, used, size in (("gpu1", "gpu0", 1 << 30), ("gpu0", "gpu1", 24 << 30)):
        made = run("plan", model, *given, "--vram", f"{left_out}=0GiB", "--out", model.parent / "plan.json")
        assert made.exit_code == 0, made.output
        budgets = {account.device: account.budget for account in load_plan(model.parent / "plan.json").ledger}
        assert (budgets[used], budgets[left_out]) == (size, 0)


def test_a_plan_for_more_accelerators_than_are_given_is_refused(model: Path, tmp_path: Path) -> None:
    save_plan(plan_of(model, experts=[0, 1, *[CPU] * 6]), tmp_path / "plan.json")
    given = config(model, "emulated:", context=None, plan=tmp_path / "plan.json")
    with pytest.raises(PlanError, match=r"keeps parts on gpu0, gpu1, and 1 accelerator is given; name each"):
        assemble(given, lambda stage, done, total: None)


def test_a_plan_that_takes_more_than_an_accelerator_has_is_refused(model: Path, tmp_path: Path) -> None:
    plan = plan_of(model, experts=[0] * 8)
    save_plan(plan, tmp_path / "plan.json")
    given = config(model, "emulated:vram=520MiB", "emulated:number=1", context=None, plan=tmp_path / "plan.json")
    with pytest.raises(
        MemoryPlanError, match=r"of gpu0, and emulated:0 has 520 MiB; make one by.*--vram gpu0=0\.50GiB"
    ):
        assemble(given, lambda stage, done, total: None)


def staged(plan: Plan) -> Plan:
    """With room on accelerators for experts that prompts bring there."""
    staging = Term("prefill staging", 1 << 20)
    ledger = tuple(
        account if account.device == RAM else replace(account, terms=(*account.terms, staging))
        for account in plan.ledger
    )
    return replace(plan, ledger=ledger)


def served_by(plan: Plan, model: Path, tmp_path: Path) -> tuple[dict[str, int], Acceleration]:
    """The events of a start by the plan, and what it accelerates by."""
    save_plan(plan, tmp_path / "plan.json")
    given, events = config(model, CARD, context=None, plan=tmp_path / "plan.json"), EventLog()
    made = accelerate(given, model, plan, events, lambda stage, done, total: None)
    return events.counts(), made.acceleration(events.record)


def test_where_nothing_was_measured_prompts_bring_no_experts(model: Path, tmp_path: Path) -> None:
    plan = staged(plan_of(model, experts=[0, CPU] * 4))
    events, acceleration = served_by(plan, model, tmp_path)
    assert "prefill_not_streamed" not in events and acceleration.streaming is not None
    hardware_file(2).unlink()
    events, acceleration = served_by(plan, model, tmp_path)
    assert events["prefill_not_streamed"] == 1 and acceleration.streaming is None


def test_a_plan_without_staging_lacks_nothing_where_nothing_was_measured(model: Path, tmp_path: Path) -> None:
    hardware_file(2).unlink()
    events, acceleration = served_by(plan_of(model, experts=[0, CPU] * 4), model, tmp_path)
    assert "prefill_not_streamed" not in events and acceleration.streaming is None


@pytest.mark.parametrize(("slots", "told"), [(0, 0), (2, 1)])
def test_slots_that_were_to_follow_each_token_are_said_to_be_static(
    slots: int, told: int, model: Path, tmp_path: Path
) -> None:
    plan = plan_of(model, experts=[0, CPU] * 4)
    first, *others = plan.layers
    plan = replace(plan, layers=(replace(first, slots=slots), *(replace(layer, slots=0) for layer in others)))
    events, _ = served_by(plan, model, tmp_path)
    assert events.get("slots_are_static", 0) == told


def test_a_plan_that_leaves_no_room_for_what_offloading_takes_is_refused(model: Path, tmp_path: Path) -> None:
    plan = plan_of(model, experts=[0] * 8)
    save_plan(plan, tmp_path / "plan.json")
    room = plan.ledger[1].total + KV_STAGING_BYTES - 1
    given = config(model, f"emulated:vram={room}B", "emulated:number=1", context=None, plan=tmp_path / "plan.json")
    with pytest.raises(MemoryPlanError, match=r"the plan takes .* of gpu0, and emulated:0 has"):
        assemble(replace(given, kv_offload_gib=0.01), lambda stage, done, total: None)
    assemble(given, lambda stage, done, total: None).engine.stop()


def test_a_cache_that_no_accelerator_uses_is_not_offloaded_and_that_is_told(model: Path, tmp_path: Path) -> None:
    save_plan(plan_of(model, experts=[0] * 8), tmp_path / "plan.json")
    given = config(
        model, "emulated:", "emulated:number=1", context=None, plan=tmp_path / "plan.json", kv_offload_gib=0.001
    )
    with assembled(given) as assembly:
        assert assembly.engine.events.counts()["kv_not_offloaded"] == 1
        assert assembly.runner.num_resident == assembly.runner.num_blocks > 50
    assert answers(given) == answers(config(model))


def test_ram_for_a_larger_cache_is_used_beside_an_accelerators_own(model: Path) -> None:
    with assembled(config(model, CARD, kv_offload_gib=0.001)) as assembly:
        runner, status = assembly.runner, assembly.status()
        assert (runner.num_resident, status["kv"]["blocks"]) == (4, 4)  # a context of 64 tokens
        assert status["kv"]["prefix_blocks"] == runner.num_blocks > 50
        each = 16 * runner.kv_bytes_per_token
        assert assembly.kv_bytes == (runner.num_blocks + 4) * each
    with assembled(config(model, CARD)) as assembly:
        assert assembly.kv_bytes == 4 * 16 * assembly.runner.kv_bytes_per_token


def test_an_accelerator_without_room_for_anything_is_refused(model: Path) -> None:
    needed = CONTEXT_BYTES + HEADROOM_BYTES
    told = r"of gpu0 is less than .* headroom\); give it more by its vram=, or leave out --accelerator emulated:vram"
    with pytest.raises(FitError, match=told):
        assemble(config(model, f"emulated:vram={needed}B"), lambda stage, done, total: None)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("gpu7",), "'gpu7' is no accelerator; write cuda:0, or emulated:"),
        (("emulated:vram=much",), "vram= of an emulated device: 'much' is no size"),
        (("emulated:", "emulated:"), "there are two of emulated:0: give one of them number=1"),
        (("emulated:number=1", "emulated:number=1"), "there are two of emulated:1: give one of them number=0"),
        (("cuda:99",), "there is no cuda:99"),
    ],
)
def test_what_is_no_accelerator_is_refused(names: tuple[str, ...], told: str, model: Path) -> None:
    with pytest.raises(ConfigError, match=f"--accelerator: .*{told}"):
        assemble(config(model, *names), lambda stage, done, total: None)
