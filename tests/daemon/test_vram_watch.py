"""Memory of accelerators that other programs take, and give back."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from isotherm.daemon.assembly import Assembly
from isotherm.daemon.vram import SetVram
from isotherm.daemon.vram_watch import CALM_S, LOOK_S, VramWatch
from isotherm.gpu_kernels.device_spec import Spec
from isotherm.gpu_kernels.emulated import Emulated
from isotherm.placement.plan_file import save_plan
from support.accelerated import CARD, assembled, config, plan_of
from support.engine_runs import PATIENCE_S, messages_of, request, tokens_of, until
from support.hybrid import residency_of
from support.kept_machine import keep_profile
from support.tiny import write_gguf

pytestmark = pytest.mark.usefixtures("own_folders")
MIB = 1 << 20
TOTAL, LEAST = 1024 * MIB, 64 * MIB


class Card:
    """One that has used some of its memory. others: what other programs hold."""

    def __init__(self, used: int) -> None:
        self.limit_bytes, self.used_bytes, self.others = TOTAL, used, 0

    @property
    def free_bytes(self) -> int:
        return TOTAL - self.used_bytes - self.others

    def obey(self, limit: int) -> None:
        self.limit_bytes, self.used_bytes = limit, min(self.used_bytes, limit)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def after(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def looked(watch: VramWatch, clock: Clock, seconds: float = LOOK_S, asked: int = TOTAL) -> list[int]:
    clock.after(seconds)
    return [limit for _, limit in watch.look([asked])]


def test_what_only_we_use_is_left(clock: Clock) -> None:
    watch = VramWatch([Card(TOTAL)], LEAST, clock)
    assert looked(watch, clock) == []


def test_so_much_is_given_that_others_find_some_free(clock: Clock) -> None:
    watch = VramWatch([card := Card(900 * MIB)], LEAST, clock)
    card.others = 100 * MIB
    assert looked(watch, clock) == [860 * MIB]
    card.obey(860 * MIB)
    assert card.free_bytes == LEAST and looked(watch, clock) == []
    assert looked(watch, clock, LOOK_S / 2) == []
    card.others += 50 * MIB
    assert looked(watch, clock, LOOK_S / 2) == [810 * MIB]


def test_room_is_taken_again_when_it_has_stayed(clock: Clock) -> None:
    watch = VramWatch([card := Card(900 * MIB)], LEAST, clock)
    card.others = 500 * MIB
    card.obey(*looked(watch, clock))
    card.others = 0
    assert looked(watch, clock, CALM_S - LOOK_S) == []
    card.others = 400 * MIB  # it has come and gone, and not for long
    card.others = 500 * MIB
    assert looked(watch, clock) == []
    card.others = 0
    assert looked(watch, clock, CALM_S - LOOK_S) == []
    assert looked(watch, clock) == [TOTAL - LEAST]
    card.obey(TOTAL - LEAST)
    assert looked(watch, clock, CALM_S) == looked(watch, clock, CALM_S) == []


def test_an_operator_s_limit_is_kept(clock: Clock) -> None:
    watch = VramWatch([card := Card(900 * MIB)], LEAST, clock)
    card.others = 500 * MIB
    card.obey(*looked(watch, clock))
    card.others = 0
    looked(watch, clock, asked=700 * MIB)
    assert looked(watch, clock, CALM_S, asked=700 * MIB) == [700 * MIB]


def test_a_value_that_wavers_moves_nothing(clock: Clock) -> None:
    watch = VramWatch([card := Card(900 * MIB)], LEAST, clock)
    card.others = 100 * MIB
    card.obey(*looked(watch, clock))
    for number in range(200):
        card.others = (100 - number % 12) * MIB
        assert looked(watch, clock) == []


@pytest.fixture
def assembly(tmp_path: Path) -> Iterator[Assembly]:
    """All of the first layer's experts are on gpu0."""
    write_gguf(tmp_path / "tiny.gguf", "qwen3_moe", "Q4_0")
    keep_profile(threads=2)
    save_plan(plan_of(tmp_path / "tiny.gguf", experts=[0] * 8), tmp_path / "plan.json")
    with assembled(config(tmp_path / "tiny.gguf", CARD, context=None, plan=tmp_path / "plan.json")) as made:
        yield made


def say(assembly: Assembly, name: str) -> list[int]:
    return tokens_of(messages_of(assembly.engine.client.submit(request(name, (3, 1, 4, 1, 5), max_tokens=6))))


def test_experts_leave_for_other_programs_come_back_and_no_answer_changes(
    assembly: Assembly, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isotherm.daemon.vram_watch.CALM_S", 0.0)
    (card,) = residency_of(assembly.runner).accelerators
    assert isinstance(card, Emulated)
    where = residency_of(assembly.runner).where
    right, count = say(assembly, "a"), len(where[0])
    least = int(assembly.config.vram_free_gib * (1 << 30))
    card.faults.taken_bytes = Spec(vram_bytes=1 << 30).vram_bytes - card.used_bytes - least + 4096
    until(lambda: (where[0] == 0).sum() < count)  # an idle engine looks, too
    assert card.free_bytes >= least
    assert say(assembly, "b") == right
    card.faults.taken_bytes = (1 << 30) - least // 2
    until(lambda: "vram_short" in assembly.engine.events.counts())
    assert (where[0] == 0).sum() == 0 and say(assembly, "c") == right
    card.faults.taken_bytes = 0
    until(lambda: (where[0] == 0).sum() == count)
    assert say(assembly, "d") == right
    counts = assembly.engine.events.counts()
    assert counts["vram_short"] == 1 and counts["vram_given_back"] >= 1 and counts["vram_taken_again"] >= 1
    assert 'isotherm_vram_bytes{device="gpu0",kind="free"}' in assembly.engine.metrics.render().decode()
    residency_of(assembly.runner).check_integrity()
    limits = assembly.engine.client.ask(SetVram(limits={"gpu0": None})).result(PATIENCE_S)
    assert limits["devices"][0]["limit_bytes"] == 1 << 30
