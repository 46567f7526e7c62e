"""When swaps are decided, written down and begun, on a runner and residents that are made up."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from isotherm.daemon.choices import Choices
from isotherm.daemon.errors import EngineError, InvalidRequestError, OverloadedError
from isotherm.daemon.events import EventLog
from isotherm.daemon.history_keeper import HistoryKeeper
from isotherm.daemon.placement_history import PlacementHistory
from isotherm.daemon.rebalance import Rebalance
from isotherm.daemon.rebalancing import DECIDE_EVERY, KEEP_EVERY, Rebalancing
from isotherm.daemon.rebalancing_start import history_at_start, placement_at_start, rules_for, start_rebalancing
from isotherm.daemon.step import Chunk, StepPlan
from isotherm.gpu_kernels.device import DeviceLostError
from isotherm.placement.placed import Placement
from isotherm.placement.rebalance import MoveCosts, Rules, Swap
from isotherm.placement.shape import CPU

COSTS = MoveCosts(nbytes=np.array([10]), saving_ms=np.array([[1.0]]), transfer_ms=np.array([[5.0]]))
RULES = Rules(half_life=1000.0, horizon=1000.0, step_bytes=10)
PLANNED = [0, 0, CPU, CPU]


def placed(where: Sequence[int] = PLANNED) -> Placement:
    """A dense layer, and one of experts."""
    experts = (np.zeros(0, np.int8), np.array(where, np.int8))
    return Placement(dense=(CPU, CPU), experts=experts, embed=CPU, head=CPU)


class GivenResidents:
    """Swaps arrive when `arrive` is called, or when they are waited for."""

    def __init__(self) -> None:
        self.where = placed().experts
        self.begun: list[Sequence[Swap]] = []
        self.fault: Exception | None = None
        self._under_way: list[Swap] = []

    def settle(self, *, wait: bool = False) -> int:
        if self.fault:
            raise self.fault
        if wait:
            self.arrive()
        return len(self._under_way)

    def swap(self, swaps: Sequence[Swap]) -> None:
        for one in swaps:
            if self.where[one.layer][one.demoted] != one.device:
                raise ValueError("it is not there")
            self.where[one.layer][one.demoted] = CPU
        self.begun.append(swaps)
        self._under_way += swaps

    def arrive(self) -> None:
        for one in self._under_way:
            self.where[one.layer][one.promoted] = one.device
        self._under_way.clear()


class GivenKeeper:
    """Keeps what it is given as soon as it may."""

    def __init__(self) -> None:
        self.given: list[PlacementHistory] = []
        self.slow = False

    def keep(self, history: PlacementHistory) -> int:
        self.given.append(history)
        return len(self.given)

    def is_kept(self, number: int) -> bool:
        return not self.slow


class Case:
    """A daemon of one layer with four experts, two of them on an accelerator."""

    def __init__(self, known: PlacementHistory | None = None, rules: Rules = RULES) -> None:
        self.residents, self.keeper, self.events = GivenResidents(), GivenKeeper(), EventLog()
        start_at = placement_at_start(placed(), ["card"], known, self.events)
        for own, lies in zip(self.residents.where, start_at.experts, strict=True):
            own[:] = lies
        start = history_at_start(start_at, ["card"], "ab", known)
        self.rebalancing: Rebalancing = start_rebalancing(
            self,
            self.residents,
            start_at,
            COSTS,
            rules,
            self.keeper,
            start,
            self.events,  # type: ignore[arg-type]
        )
        self._chosen = np.zeros((1, 1, 1), np.int64)

    def choices(self) -> Choices:
        return Choices(self._chosen, np.ones(self._chosen.shape, np.float32), narrowed=False)

    def decode(self, expert: int, tokens: int = DECIDE_EVERY) -> None:
        """A step in which all streams choose an expert."""
        self._chosen = np.full((1, tokens, 1), expert)
        chunks = tuple(Chunk(str(n), (1,), 3, (0,), True) for n in range(tokens))
        self.rebalancing.between_steps(StepPlan(chunks))

    def prefill(self, expert: int, tokens: int = DECIDE_EVERY) -> None:
        self._chosen = np.full((1, tokens, 1), expert)
        self.rebalancing.between_steps(StepPlan((Chunk("a", (1,) * tokens, 0, (0,), False),)))

    def idle(self) -> float | None:
        return self.rebalancing.between_steps(None)

    def ask(self, **fields: Any) -> dict[str, Any]:
        return self.rebalancing.commands[Rebalance](Rebalance(**fields))

    @property
    def where(self) -> list[int]:
        return self.residents.where[1].tolist()


def test_what_is_decoded_draws_its_experts_in() -> None:
    case = Case()
    case.decode(3)
    case.decode(3, 1)
    case.residents.arrive()
    assert case.where == [CPU, 0, CPU, 0]
    assert [[(one.promoted, one.demoted) for one in swaps] for swaps in case.residents.begun] == [[(3, 0)]]


def test_few_tokens_decide_nothing() -> None:
    case = Case()
    case.decode(3, DECIDE_EVERY - 1)
    assert case.keeper.given == []
    case.decode(3, 1)
    assert len(case.keeper.given) == 1


def test_prompts_draw_nothing_in() -> None:
    case = Case()
    for _ in range(5):
        case.prefill(3)
    assert case.keeper.given == [] and case.ask()["swaps"] == []


def test_no_round_begins_before_it_is_written_down() -> None:
    case = Case()
    case.keeper.slow = True
    for _ in range(5):
        case.decode(3)
    assert len(case.keeper.given) == 1 and case.residents.begun == []
    assert case.keeper.given[0].where.tolist() == [[CPU, 0, CPU, 0]]
    assert case.idle() is not None  # it looks again soon
    case.keeper.slow = False
    case.decode(3, 1)
    assert len(case.residents.begun) == 1


def test_the_next_round_waits_for_the_copies_of_the_last() -> None:
    case = Case()
    for expert in (3, 2, 2, 2, 2):
        case.decode(expert)
    assert len(case.keeper.given) == 1 and len(case.residents.begun) == 1
    case.residents.arrive()
    case.decode(2)
    case.decode(2)
    assert len(case.residents.begun) == 2


def test_an_idle_engine_finishes_what_was_begun() -> None:
    case = Case()
    case.decode(3)
    pauses = []
    while (pause := case.idle()) is not None:
        pauses.append(pause)
        assert len(pauses) < 10
    assert case.where == [CPU, 0, CPU, 0]


def test_a_dry_run_says_why_and_does_nothing() -> None:
    case = Case()
    case.ask(automatic=False)
    case.decode(3)
    told = case.ask()
    assert [(one["promoted"], one["demoted"]) for one in told["swaps"]] == [(3, 0)]
    assert "chooses expert 3" in told["swaps"][0]["reason"]
    assert (told["dry_run"], told["automatic"], told["under_way"]) == (True, False, False)
    assert (told["nbytes"], told["transfer_ms"]) == (10, 5.0) and told["saving_ms"] > 5.0
    assert case.ask() == told and case.where == PLANNED and case.keeper.given == []


def test_what_is_asked_for_is_done() -> None:
    case = Case()
    case.ask(automatic=False)
    case.decode(3)
    case.idle()
    assert case.ask(dry_run=False)["under_way"]
    with pytest.raises(OverloadedError, match="under way"):
        case.ask(dry_run=False)
    assert case.ask()["swaps"] == []
    case.decode(3, 1)
    case.residents.arrive()
    assert case.where == [CPU, 0, CPU, 0]
    assert case.ask()["rounds_back"] == 1


def rebalanced_case() -> Case:
    case = Case()
    case.decode(3)
    case.idle()
    case.idle()
    assert case.where == [CPU, 0, CPU, 0]
    return case


def test_a_round_can_be_taken_back_and_is_not_made_again_soon() -> None:
    case = rebalanced_case()
    dry = case.ask(back=True)
    assert [(one["promoted"], one["demoted"]) for one in dry["swaps"]] == [(0, 3)] and dry["saving_ms"] < 0
    assert case.where == [CPU, 0, CPU, 0]
    case.ask(back=True, dry_run=False)
    case.idle()
    case.idle()
    assert case.where == PLANNED
    told = case.ask()
    assert (told["rest_tokens"], told["rounds_made"], told["rounds_back"]) == (1000.0, 1, 0)
    for _ in range(5):
        case.decode(3)
    assert case.where == PLANNED
    with pytest.raises(InvalidRequestError, match="no round"):
        case.ask(back=True)


def test_rates_are_written_down_now_and_then_and_at_the_end() -> None:
    case = Case()
    for _ in range(KEEP_EVERY // DECIDE_EVERY):
        case.decode(0)
    assert len(case.keeper.given) == 1 and case.keeper.given[0].rates[0, 0] > 0.5
    case.rebalancing.close()
    assert len(case.keeper.given) == 1
    case.decode(1, 5)
    case.rebalancing.close()
    assert len(case.keeper.given) == 2 and case.keeper.given[1].rates[0, 1] > 0


def test_a_daemon_goes_on_where_another_was() -> None:
    before = rebalanced_case()
    known = before.keeper.given[-1]
    case = Case(known)
    assert case.where == [CPU, 0, CPU, 0]
    assert case.ask()["rounds_made"] == 1
    case.ask(back=True, dry_run=False)
    case.idle()
    case.idle()
    assert case.where == PLANNED
    resting = Case(case.keeper.given[-1])
    assert resting.where == PLANNED and resting.ask()["rest_tokens"] == 1000.0


def test_of_another_plan_only_the_rates_are_taken() -> None:
    known = rebalanced_case().keeper.given[-1]
    case = Case(PlacementHistory(**fields_of(known) | {"where": np.array([[0, CPU, CPU, CPU]], np.int8)}))
    assert case.where == PLANNED and case.events.counts() == {"placement_planned_anew": 1}
    assert case.ask()["rounds_back"] == 0
    case.decode(3, 1)
    case.idle()
    assert [one["promoted"] for one in case.ask()["swaps"]] == [3]


def fields_of(history: PlacementHistory) -> dict[str, Any]:
    return {name: getattr(history, name) for name in PlacementHistory.__slots__}


def test_a_device_that_fails_ends_the_round_and_nothing_else() -> None:
    case = Case()
    case.decode(3)
    case.residents.fault = DeviceLostError("card: a copy failed")
    case.decode(3)
    assert case.events.counts() == {"rebalancing_interrupted": 1} and case.residents.begun == []
    case.residents.fault = None
    case.residents.where[1][:] = CPU  # it was given up
    case.decode(3)
    assert case.ask()["swaps"] == [] and case.ask()["rounds_back"] == 0


def test_whoever_asks_of_a_device_that_fails_is_told_so() -> None:
    case = Case()
    case.decode(3)
    case.residents.fault = DeviceLostError("card: a copy failed")
    with pytest.raises(EngineError, match="which the next step will do without: card: a copy failed"):
        case.ask()


def test_residents_that_others_moved_are_followed() -> None:
    case = rebalanced_case()
    case.residents.where[1][:] = [0, CPU, CPU, 0]
    assert case.ask()["rounds_back"] == 0
    for _ in range(3):
        case.decode(2)
    case.residents.arrive()
    assert case.where == [CPU, CPU, 0, 0]


def test_a_round_that_others_overtook_is_decided_anew() -> None:
    case = Case()
    case.decode(3)
    case.residents.where[1][:] = [CPU, 0, 0, CPU]
    case.decode(3)
    assert case.events.counts() == {"swaps_outdated": 1}
    case.decode(3, 1)
    case.decode(3, 1)
    case.residents.arrive()
    assert case.where == [CPU, CPU, 0, 0] or case.where == [CPU, 0, CPU, 0]


def test_a_round_fits_the_slowest_link() -> None:
    costs = MoveCosts(
        nbytes=np.array([100, 200]), saving_ms=np.ones((2, 2)), transfer_ms=np.array([[0.1, 0.2], [0.2, 0.4]])
    )
    assert (rules_for(costs).step_bytes, rules_for(costs).step_ms) == (2500, 5.0)
    slow = MoveCosts(nbytes=np.array([100]), saving_ms=np.ones((1, 1)), transfer_ms=np.array([[50.0]]))
    assert (rules_for(slow).step_bytes, rules_for(slow).step_ms) == (100, 50.0)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "deep" / "history.json"


def test_a_keeper_writes_the_latest_and_all_is_there_at_the_end(file: Path) -> None:
    events, history = EventLog(), rebalanced_case().keeper.given[-1]
    keeper = HistoryKeeper(file, events)
    assert keeper.load("ab") is None
    with keeper.keeping():
        for made in range(1, 50):
            number = keeper.keep(PlacementHistory(**fields_of(history) | {"made": made}))
    assert keeper.is_kept(number)
    again = HistoryKeeper(file, events).load("ab")
    assert again is not None and again.made == 49
    np.testing.assert_array_equal(again.where, history.where)
    np.testing.assert_allclose(again.rates, history.rates, atol=1e-7)
    assert again.rounds == history.rounds and events.counts() == {}


def test_what_cannot_be_written_is_told_once_and_holds_nothing_up(file: Path) -> None:
    file.parent.write_text("no folder")
    events, history = EventLog(), rebalanced_case().keeper.given[-1]
    keeper = HistoryKeeper(file, events)
    with keeper.keeping():
        keeper.keep(history)
    with pytest.raises(AssertionError), HistoryKeeper(file, events).keeping():
        raise AssertionError
    assert keeper.is_kept(1) and events.counts() == {"placement_not_kept": 1}
