"""Daemons under load: whatever lies on accelerators and moves meanwhile, each request is told what the CPU alone says.

Two dozen requests from four clients: prompts in chunks and from the prefix cache, preemption for want of blocks,
requests that are given up in the middle, greedy and seeded sampling, log-probabilities.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import numpy as np
import pytest
from isotherm.daemon import rebalanced
from isotherm.daemon.assembly import Assembly
from isotherm.daemon.config import Config
from isotherm.daemon.messages import Command
from isotherm.daemon.rebalanced import Rebalanced
from isotherm.daemon.runner import DecoderRunner
from isotherm.daemon.step import StepPlan
from isotherm.experts.model import Model, open_model
from isotherm.experts.residency import Residency
from isotherm.gpu_kernels import devices
from isotherm.placement.placed import Placement
from isotherm.placement.plan_file import save_plan
from isotherm.placement.rebalance import MoveCosts, Rules
from isotherm.placement.shape import CPU
from support.accelerated import assembled, plan_at
from support.api_service import call, make_service
from support.engine_runs import assert_nothing_left
from support.hybrid import random_placement, residency_of, swap_everywhere
from support.kept_machine import keep_profile
from support.load import CONTEXT, Answer, check, one_by_one, together, wishes
from support.tiny import ARCHITECTURES, VOCAB_SIZE, write_gguf

Meanwhile = Callable[[Assembly], AbstractContextManager[None]]
FORMATS = dict(zip(ARCHITECTURES, ("Q8_0", "Q4_0", "Q8_0", "Q4_0", "Q8_0"), strict=True))
ONE = "qwen2_moe"  # for what takes long; it has a shared expert too
CARDS = (1 << 30, 3 << 28)  # bytes
WISHES = wishes(VOCAB_SIZE, 24)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    """A tiny model by name; each written once."""
    folder = tmp_path_factory.mktemp("models")

    @cache
    def write(name: str) -> Model:
        path: Path = folder / name / "tiny.gguf"
        write_gguf(path, name, FORMATS[name])
        return open_model(path)

    return write


@pytest.fixture(scope="module")
def expected(model: Callable[[str], Model]) -> Callable[[str], dict[str, Answer]]:
    """What the CPU alone says to each request alone."""

    @cache
    def said(name: str) -> dict[str, Answer]:
        with assembled(settings(model(name), context=CONTEXT)) as daemon:
            return one_by_one(daemon.engine.client, WISHES)

    return said


def settings(model: Model, **changes: Any) -> Config:
    given = {"threads": 2, "pack_cache": False, "max_step_tokens": 48, "max_running": 8, "kv_cache": "int16"}
    return Config(model=model.checkpoint.path, **given | changes)


@pytest.fixture
def loaded(
    tmp_path: Path,
    own_folders: None,
    monkeypatch: pytest.MonkeyPatch,
    model: Callable[[str], Model],
    expected: Callable[[str], dict[str, Answer]],
) -> Callable[..., None]:
    """Puts a daemon with room for three full contexts under load, by a model, a placement and the sizes of its cards,
    and compares. meanwhile: begins once it is put together, and is over when its requests have ended."""
    keep_profile(threads=2)
    late = Random(7)  # cards do their work as late as may be, in any order
    monkeypatch.setattr(devices, "open_device", partial(devices.open_device, late=late))

    def run(name: str, placement: Placement, cards: Sequence[int], meanwhile: Meanwhile = nothing_else) -> None:
        plan, opened = tmp_path / "plan.json", model(name)
        save_plan(plan_at(opened.checkpoint.path, placement, cards or CARDS, context=CONTEXT, streams=3), plan)
        given = settings(opened, plan=plan, accelerators=tuple(_name(n, size) for n, size in enumerate(cards)))
        with assembled(given, start=False) as daemon, kept(daemon):
            with meanwhile(daemon):
                answers = together(daemon.engine, WISHES)
            check(WISHES, answers, expected(name))
            assert_nothing_left(daemon.engine)
            stats = daemon.engine.stats()
            assert stats.preemptions > 0 and stats.prefix_hit_tokens > 0
            if cards:
                residency_of(daemon.runner).settle(wait=True)
                residency_of(daemon.runner).check_integrity()
            daemon.engine.stop()
        if cards:
            assert [card.used_bytes for card in residency_of(daemon.runner).accelerators] == [0] * len(cards)

    return run


def _name(number: int, size: int) -> str:
    """Of a card that is fast enough for moves to pay."""
    return f"emulated:vram={size}B,number={number},launch=0us,hop=0us,link=500GBps"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_cpu_alone(name: str, model: Callable[[str], Model], loaded: Callable[..., None]) -> None:
    loaded(name, random_placement(model(name).spec, [], seed=0), ())


def test_the_load_has_all_ends(expected: Callable[[str], dict[str, Answer]]) -> None:
    """As the CPU gives them; those that leave do so in the middle."""
    told = expected(ONE)
    assert {answer.end.reason for answer in told.values()} == {"stop", "length"}  # type: ignore[union-attr]
    leave = [wish for wish in WISHES if wish.leaves is not None]
    assert sum(len(told[wish.submit.request_id].tokens) > wish.leaves for wish in leave) > 2


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_any_share_of_experts_on_an_accelerator(
    share: float, model: Callable[[str], Model], loaded: Callable[..., None]
) -> None:
    loaded(ONE, random_placement(model(ONE).spec, [share], seed=1), CARDS[:1])


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_layers_and_experts_on_two_accelerators_of_unequal_size(
    name: str, model: Callable[[str], Model], loaded: Callable[..., None]
) -> None:
    loaded(name, random_placement(model(name).spec, [0.5, 0.25], seed=2, dense=(0, CPU, 1, 0)), CARDS)


def test_an_accelerator_with_layers_is_lost(model: Callable[[str], Model], loaded: Callable[..., None]) -> None:
    @contextmanager
    def doomed(daemon: Assembly) -> Iterator[None]:
        card = residency_of(daemon.runner).accelerators[0]
        card.faults.fail("launch", after=300)  # type: ignore[attr-defined]
        yield
        assert {"accelerator_lost", "requests_begun_anew"} <= daemon.engine.events.counts().keys()
        shown = daemon.accelerators.show() if daemon.accelerators else {}
        assert [device["lost"] for device in shown["devices"]] == [True, False]
        assert daemon.engine.stats().state == "ready"

    loaded(ONE, random_placement(model(ONE).spec, [0.5, 0.25], seed=2, dense=(0, 0, 1, 0)), CARDS, doomed)


@pytest.mark.parametrize("home", [CPU, 0])
def test_swaps_at_every_step(
    home: int, model: Callable[[str], Model], loaded: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Swaps] = []

    def swapping(_: Rebalanced, runner: DecoderRunner) -> list[Swaps]:
        made.append(Swaps(residency_of(runner)))
        return made

    monkeypatch.setattr(Rebalanced, "attendants", swapping)
    loaded(ONE, random_placement(model(ONE).spec, [0.4, 0.3], seed=3, dense=(home,) * 4), CARDS)
    assert made[0].count > 100


def test_memory_comes_and_goes_and_experts_follow_the_traffic(
    model: Callable[[str], Model], loaded: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalanced, "rules_for", eager)
    operators: list[Operator] = []

    @contextmanager
    def operated(daemon: Assembly) -> Iterator[None]:
        operators.append(Operator(daemon))
        with operators[0].at_work():
            yield

    loaded(ONE, random_placement(model(ONE).spec, [0.5], seed=4), CARDS[:1], operated)
    assert operators[0].given > 2 and operators[0].rounds > 2


def kept(daemon: Assembly) -> AbstractContextManager[None]:
    """While rounds of swaps are written down, for which they wait."""
    return daemon.rebalanced.keeping() if daemon.rebalanced else nullcontext()


@contextmanager
def nothing_else(daemon: Assembly) -> Iterator[None]:
    yield


def eager(costs: MoveCosts) -> Rules:
    """For rebalancing: follow the traffic at once."""
    return Rules(half_life=16, horizon=23, hysteresis=0.0, confidence=0.0, step_bytes=int(costs.nbytes.max()))


class Swaps:
    """An attendant that begins swaps after each step, one in each layer. count: how many."""

    commands: ClassVar[dict[type[Command], Any]] = {}

    def __init__(self, residency: Residency) -> None:
        self._residency, self._rng, self.count = residency, np.random.default_rng(5), 0

    def between_steps(self, plan: StepPlan | None) -> None:
        if plan is not None:
            self.count += swap_everywhere(self._residency, self._rng)


class Operator:
    """Takes memory of the first accelerator away, gives it back, and has experts moved, over and over, by HTTP. given:
    how often it was taken; rounds: how often experts were moved."""

    def __init__(self, daemon: Assembly) -> None:
        self._service, self._over = make_service(daemon.engine.client), threading.Event()
        self.given = self.rounds = 0
        self._faults: list[str] = []

    @contextmanager
    def at_work(self) -> Iterator[None]:
        thread = threading.Thread(target=self._work)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
        assert not self._faults

    def _work(self) -> None:
        try:
            device = self._post("vram", gpu0=None)["devices"][0]
            experts = device["expert_bytes"]
            fixed = device["used_bytes"] - experts
            for limit in cycle((fixed, fixed + experts // 2, None, fixed + experts * 3 // 4, None)):
                if self._over.is_set():
                    return
                self._post("vram", gpu0=limit)
                self.given += limit is not None
                for back in (False, True, False):
                    told = self._post("rebalance", rollback=back, dry_run=False)
                    self.rounds = told.get("rounds_made", self.rounds)
        except BaseException as error:
            self._faults.append(repr(error))

    def _post(self, what: str, **body: Any) -> dict[str, Any]:
        """The answer; none where it is to be asked later, or nothing can be taken back."""
        response = call(self._service, "POST", f"/admin/{what}", json=body)
        if response.status_code == 429 or "no round of swaps" in response.text:
            return {}
        assert response.status_code == 200, response.text
        told: dict[str, Any] = response.json()
        return told
