"""An accelerator that fails under load: each request ends once, in the CPU's tokens or in a failure that says why."""

from pathlib import Path

import numpy as np
import pytest
from isotherm.daemon.errors import EngineError
from isotherm.daemon.messages import Failed
from isotherm.experts.model import Model, open_model
from isotherm.placement.placed import Placement
from isotherm.placement.rebalance import Swap
from isotherm.placement.shape import CPU
from support.engine_runs import assert_nothing_left, messages_of
from support.hybrid import emulated, placed
from support.rebalanced import EXPERTS, ask, question, rebalanced, said_by_the_cpu, write_model

MIB = 1 << 20
TOPICS = ([5, 9, 30, 77], [100, 120, 140, 160])
COUNT, TOKENS = 3, 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(path)
    return open_model(path)


@pytest.fixture(scope="module")
def expected(model: Model) -> list[list[int]]:
    return said_by_the_cpu(model, TOPICS[0], COUNT, TOKENS)


@pytest.mark.parametrize("kind", ["copy", "launch", "hang"])
def test_requests_do_not_notice_that_experts_are_lost(
    kind: str, model: Model, expected: list[list[int]], tmp_path: Path
) -> None:
    cards = emulated(8 * MIB, late=3)
    with rebalanced(model, cards, tmp_path / "h.json") as served:
        cards[0].faults.fail(kind, after=20)  # type: ignore[arg-type]  # a replay counts as one launch
        assert ask(served.client, TOPICS[0], COUNT, TOKENS) == expected
        assert served.events.counts() == {"accelerator_lost": 1}
        assert "emulated:0" in served.events.recent()[0].detail
        assert cards[0].used_bytes == 0
        assert ask(served.client, TOPICS[0], COUNT, TOKENS) == expected
        assert_nothing_left(served.engine)
        stats = served.client.stats()
        assert (stats.state, stats.failed_steps) == ("ready", 0)


def test_a_copy_of_a_swap_that_fails_changes_no_answer(
    model: Model, expected: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards = emulated(8 * MIB, late=5)
    with rebalanced(model, cards, tmp_path / "h.json") as served:
        swap = served.residency.swap

        def doomed(swaps: tuple[Swap, ...]) -> None:
            cards[0].faults.fail("copy", after=2)
            swap(swaps)

        monkeypatch.setattr(served.residency, "swap", doomed)
        longer = said_by_the_cpu(model, TOPICS[0], COUNT, 60)
        assert ask(served.client, TOPICS[0], COUNT, 60) == longer
        assert {"accelerator_lost"} <= set(served.events.counts()) <= {"accelerator_lost", "rebalancing_interrupted"}
        assert all((where == CPU).all() for where in served.residency.where)
        assert ask(served.client, TOPICS[0], COUNT, TOKENS) == expected
        assert served.client.stats().state == "ready"


def test_memory_that_others_take_disturbs_no_swap(model: Model, tmp_path: Path) -> None:
    """A swap takes the slot of another expert, so it asks for no memory."""
    cards = emulated(8 * MIB, late=5)
    expected = said_by_the_cpu(model, TOPICS[0], COUNT, 60)
    with rebalanced(model, cards, tmp_path / "h.json") as served:
        cards[0].faults.taken_bytes = cards[0].spec.vram_bytes
        cards[0].faults.fail("allocation", forever=True)
        before = [where.copy() for where in served.residency.where]
        assert ask(served.client, TOPICS[0], COUNT, 60) == expected
        assert any(not np.array_equal(a, b) for a, b in zip(before, served.residency.where, strict=True))
        assert served.events.counts() == {}
        cards[0].faults.mend()
        served.residency.check_integrity()


def split(model: Model, dense: tuple[int, ...]) -> Placement:
    """Half of the second layer's experts on the first accelerator, and dense parts where they are told to be."""
    experts = [np.full(EXPERTS, CPU, np.int8), np.arange(EXPERTS, dtype=np.int8) % 2 - 1]
    return placed(model.spec, experts, dense)


@pytest.mark.parametrize("kind", ["copy", "launch", "hang"])
@pytest.mark.parametrize("dense", [(CPU, CPU, 0, CPU), (1, 0, 1, 0)])
def test_the_layers_of_a_lost_device_are_computed_by_the_cpu(
    dense: tuple[int, ...], kind: str, model: Model, expected: list[list[int]], tmp_path: Path
) -> None:
    """Keys and values are lost with it, so what ran is computed anew."""
    cards = emulated(8 * MIB, 4 * MIB, late=7)
    with rebalanced(model, cards, tmp_path / "h.json", split(model, dense)) as served:
        cards[0].faults.fail(kind, after=60)  # type: ignore[arg-type]
        assert ask(served.client, TOPICS[0], COUNT, TOKENS) == expected
        assert served.events.counts() == {"accelerator_lost": 1, "requests_begun_anew": 1}
        assert all("emulated:0" in event.detail for event in served.events.recent())
        assert cards[0].used_bytes == 0
        assert served.residency.where[1].tolist() == [CPU] * EXPERTS
        assert ask(served.client, TOPICS[0], COUNT, TOKENS) == expected
        assert_nothing_left(served.engine)
        stats = served.client.stats()
        assert (stats.state, stats.failed_steps) == ("ready", 0) and stats.preemptions > 0


def test_one_device_after_the_other_may_be_lost(model: Model, expected: list[list[int]], tmp_path: Path) -> None:
    cards = emulated(8 * MIB, 4 * MIB, late=7)
    with rebalanced(model, cards, tmp_path / "h.json", split(model, (1, 0, 1, 0))) as served:
        for card in reversed(cards):
            card.faults.fail("launch", after=60)
            assert ask(served.client, TOPICS[0], COUNT, TOKENS) == expected
        assert served.events.counts() == {"accelerator_lost": 2, "requests_begun_anew": 2}
        assert ask(served.client, TOPICS[0], COUNT, TOKENS) == expected
        assert [card.used_bytes for card in cards] == [0, 0]


def test_nothing_is_computed_anew_where_no_keys_were_lost(
    model: Model, expected: list[list[int]], tmp_path: Path
) -> None:
    """The device had the embedding and the head."""
    cards = emulated(8 * MIB, late=7)
    with rebalanced(model, cards, tmp_path / "h.json", split(model, (0, CPU, CPU, 0))) as served:
        cards[0].faults.fail("launch", after=20)
        assert ask(served.client, TOPICS[0], COUNT, TOKENS) == expected
        assert served.events.counts() == {"accelerator_lost": 1}
        assert served.client.stats().preemptions == 0


@pytest.mark.parametrize("kind", ["copy", "launch", "hang"])
def test_where_ram_has_no_room_for_its_layers_a_lost_device_ends_the_engine(
    kind: str, model: Model, tmp_path: Path
) -> None:
    cards = emulated(8 * MIB, late=7)
    with rebalanced(model, cards, tmp_path / "h.json", split(model, (CPU, CPU, 0, CPU)), lambda: 1000) as served:
        cards[0].faults.fail(kind, after=60)  # type: ignore[arg-type]
        mailboxes = [served.client.submit(question(f"r{n}", TOPICS[0], 40)) for n in range(COUNT)]
        for mailbox in mailboxes:
            end = messages_of(mailbox)[-1]
            assert isinstance(end, Failed) and isinstance(end.error, EngineError)
            assert "emulated:0" in str(end.error) and "of RAM, and 1000 bytes are free" in str(end.error)
        for n in range(3):
            try:
                end = messages_of(served.client.submit(question(f"s{n}", TOPICS[1], 4)))[-1]
            except EngineError as refusal:
                assert "steps in a row failed" in str(refusal)
            else:
                assert isinstance(end, Failed)
        assert served.client.stats().state == "failed" and "emulated:0" in served.client.stats().reason
        assert served.events.counts()["step_failed"] == 3
