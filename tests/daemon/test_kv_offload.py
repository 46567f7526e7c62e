"""Accelerators with fewer KV blocks than there are logical ones: blocks go to RAM and back, and no answer changes."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from isotherm.cpu_kernels.kv_layout import KvCache
from isotherm.daemon.client import EngineClient
from isotherm.daemon.errors import ContextLengthError
from isotherm.daemon.events import EventLog
from isotherm.daemon.messages import Finished, Token
from isotherm.daemon.runner import DecoderRunner
from isotherm.experts import kv_staging
from isotherm.experts.hybrid_executor import HybridExecutor
from isotherm.experts.kv_store import kv_block_bytes
from isotherm.experts.model import Model, open_model
from isotherm.placement.shape import CPU
from support.engine_runs import assert_nothing_left, make_engine, messages_of, request, running, tokens_of
from support.engines import engine
from support.hybrid import LIMITS, emulated, hybrid, random_placement
from support.serving import Bench, make_submit
from support.tiny import VOCAB_SIZE, write_gguf

GIB = 1 << 30
KINDS = get_args(KvCache)
_RNG = np.random.default_rng(8)
TALKS = [[int(token) for token in _RNG.integers(0, VOCAB_SIZE, length)] for length in (37, 50, 19, 44)]
TURNS, COUNT = 3, 5

Said = dict[str, list[int]]


def talk(runner: DecoderRunner) -> tuple[Said, Bench]:
    """Conversations that are taken up again in turn, each with what was said so far; the last ones two at a time."""
    bench, known = Bench(runner), [list(talk) for talk in TALKS]  # type: ignore[arg-type]
    for turn in range(TURNS):
        for number, tokens in enumerate(known):
            bench.submit(make_submit(f"{turn}.{number}", tokens, max_tokens=COUNT))
            if turn < TURNS - 1 or number % 2:
                bench.run()
                runner.check_integrity(bench.pool.cached_blocks)
        for number, tokens in enumerate(known):
            tokens += [*bench.texts[f"{turn}.{number}"], 7, number, 9]
    return bench.texts, bench


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path: Path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    write_gguf(path, "qwen3_moe", "Q4_0", num_hidden_layers=3)
    return open_model(path)


@pytest.fixture(scope="module")
def expected(model: Model) -> Callable[[str], Said]:
    """What is said on the CPU alone, by the kind of the KV cache."""

    @cache
    def said(kind: str) -> Said:
        with engine(model.checkpoint.path, **LIMITS | {"kv_cache": kind}) as runner:
            return talk(runner)[0]

    return said


def offloading(model: Model, dense: Sequence[int], kv_blocks: Sequence[int], **others: Any) -> Any:
    """A runner with dense parts and half the experts on accelerators of unequal size."""
    shares = [0.5 / len(kv_blocks)] * len(kv_blocks)
    cards = emulated(*(GIB // 8**number for number in range(len(kv_blocks))), late=6)
    placement = random_placement(model.spec, shares, 4, dense=dense)
    return hybrid(model, placement, cards, kv_blocks=kv_blocks, **others)


def moved(runner: DecoderRunner) -> list[tuple[int, int]]:
    assert isinstance(runner.executor, HybridExecutor)
    return [(kv.offloaded, kv.brought_back) for kv in runner.executor.kv.values()]


ONE, SOME, TWO = ([0] * 5, [6]), ([CPU, 0, CPU, 0, CPU], [5]), ([0, 1, 0, CPU, 1], [7, 5])


@pytest.mark.parametrize(
    ("kind", "dense", "kv_blocks"),
    [("int16", *ONE), ("f32", *SOME), *((kind, *TWO) for kind in KINDS)],
    ids=["all on one", "some layers", *(f"two of unequal size {kind}" for kind in KINDS)],
)
def test_conversations_that_are_taken_up_again_go_on_as_on_the_cpu(
    kind: str, dense: list[int], kv_blocks: list[int], model: Model, expected: Callable[[str], Said]
) -> None:
    """[47]"""
    with offloading(model, dense, kv_blocks, kv_cache=kind) as runner:
        assert runner.num_resident == min(kv_blocks)
        said, bench = talk(runner)
        assert said == expected(kind)
        assert bench.pool.num_hit_tokens >= 6 * 32
        assert all(offloaded > 8 and back > 8 for offloaded, back in moved(runner))


def test_blocks_that_go_one_by_one(
    model: Model, expected: Callable[[str], Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than go at once: buffers take turns."""
    monkeypatch.setattr(kv_staging, "kv_staging_blocks", lambda block_bytes: 1)
    with offloading(model, [0] * 5, [5], kv_cache="int8") as runner:
        assert talk(runner)[0] == expected("int8")


def test_an_accelerator_with_room_for_all_moves_nothing_and_takes_no_ram(model: Model) -> None:
    """Of three layers two are there."""
    room = LIMITS["num_blocks"] * kv_block_bytes(model.spec, "f32")
    with offloading(model, [CPU, 0, CPU, 0, CPU], [LIMITS["num_blocks"]]) as runner:
        bench = talk(runner)[1]
        assert bench.pool.num_hit_tokens > 0 and moved(runner) == [(0, 0)]
        assert (runner._cache.nbytes, runner.kv_bytes) == (room // 3, room)
    with offloading(model, [CPU, 0, CPU, 0, CPU], [8]) as runner:
        assert (runner._cache.nbytes, runner.kv_bytes) == (room, room + room * 2 // 3 * 8 // LIMITS["num_blocks"])


def test_requests_that_need_more_than_the_accelerator_has_take_turns(
    model: Model, expected: Callable[[str], Said]
) -> None:
    """All come at once; what each needs has room there, what two need has not."""
    prompts = [(*talk, 7, 7) for talk in TALKS for _ in range(2)]
    with engine(model.checkpoint.path, **LIMITS | {"kv_cache": "int16"}) as alone:
        wanted = Bench(alone)  # type: ignore[arg-type]
        for number, prompt in enumerate(prompts):
            wanted.submit(make_submit(str(number), [*prompt], max_tokens=20))
        wanted.run()
        assert wanted.scheduler.num_preemptions == 0
    with offloading(model, [0] * 5, [5], kv_cache="int16") as runner:
        bench = Bench(runner)  # type: ignore[arg-type]
        for number, prompt in enumerate(prompts):
            bench.submit(make_submit(str(number), [*prompt], max_tokens=20))
        bench.run()
        assert bench.texts == wanted.texts
        assert bench.scheduler.num_preemptions > 0
        with pytest.raises(ContextLengthError):
            bench.submit(make_submit("long", [1] * 80, max_tokens=1))


@pytest.mark.parametrize("way", ["save", "bring"])
@pytest.mark.parametrize("kind", ["copy", "launch", "hang"])
def test_a_move_that_fails_costs_the_accelerator_and_no_request(
    kind: str, way: str, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lay there is computed anew, by the CPU, in the room that offloaded keys and values have in any case."""
    events = EventLog()
    with offloading(model, [0] * 5, [5], note=events.record) as runner:
        card = runner.executor.residency.accelerators[0]  # type: ignore[attr-defined]
        runner.executor._free_memory = lambda: 0  # type: ignore[attr-defined]

        def said(client: EngineClient, name: str) -> list[list[int]]:
            answers = []
            for number, prompt in enumerate(TALKS):
                messages = messages_of(client.submit(request(f"{name}{number}", tuple(prompt))))
                assert isinstance(messages[-1], Finished)
                answers.append([message.token_id for message in messages if isinstance(message, Token)])
            return answers

        with running(make_engine(runner, events=events)) as client:  # type: ignore[arg-type]
            before = said(client, "a")
            move = getattr(kv_staging.KvStaging, way)

            def doomed(self: object, *those: object) -> None:
                card.faults.fail(kind, after=0 if kind == "launch" else 1)
                move(self, *those)

            monkeypatch.setattr(kv_staging.KvStaging, way, doomed)
            assert said(client, "b") == before
            assert client.stats().state == "ready" and client.stats().audit_failures == 0
        counts = events.counts()
        assert (counts["accelerator_lost"], counts["requests_begun_anew"]) == (1, 1)


def test_an_engine_finds_its_books_in_order_after_each_stretch_of_work(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    with offloading(model, [0] * 5, [6]) as runner:
        made = make_engine(runner)  # type: ignore[arg-type]
        with running(made) as client:
            for number, prompt in enumerate([*TALKS, *TALKS]):
                assert tokens_of(messages_of(client.submit(request(str(number), tuple(prompt)))))
            assert_nothing_left(made)
            (kv,) = runner.executor.kv.values()  # type: ignore[attr-defined]
            kv._residence._saved[:] = False
            kv._residence._free.append(0)
            messages_of(client.submit(request("last", (1, 2))))
            with pytest.raises(AssertionError):
                assert_nothing_left(made)
        assert made.stats().audit_failures == 1
        kv._residence._free.pop()
