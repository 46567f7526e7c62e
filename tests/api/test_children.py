"""n choices of one prompt: they share its blocks, and usage says what was computed and what was found."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from isotherm.daemon.step import StepPlan
from numpy.typing import NDArray
from support.api_service import chunks, complete, make_service
from support.engine_runs import assert_nothing_left, make_engine, running
from support.fake_runner import FakeRunner
from support.scripted_engine import VOCAB_SIZE

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]  # two blocks and a half


class NotingRunner(FakeRunner):
    """Keeps, of each step, the requests' block tables by name."""

    def __init__(self) -> None:
        super().__init__(vocab_size=VOCAB_SIZE, block_size=4, num_blocks=64)
        self.steps: list[dict[str, list[int]]] = []

    def execute(self, plan: StepPlan) -> NDArray:
        self.steps.append({chunk.request_id: list(chunk.block_table) for chunk in plan.chunks})
        return super().execute(plan)


@contextmanager
def served() -> Iterator[tuple[NotingRunner, object]]:
    runner = NotingRunner()
    engine = make_engine(runner)
    with running(engine) as client:
        yield runner, make_service(client)
        assert_nothing_left(engine)


FIELDS = {"n": 4, "max_tokens": 12, "temperature": 1.0, "seed": 3, "ignore_eos": True}


def test_children_share_the_prompts_full_blocks_and_no_other() -> None:
    with served() as (runner, service):
        assert complete(service, PROMPT, **FIELDS).status_code == 200
    tables = list(max(runner.steps, key=lambda step: (len(step), sum(map(len, step.values())))).values())
    assert len(tables) == 4 and all(len(table) >= 5 for table in tables)
    assert len({tuple(table[:2]) for table in tables}) == 1
    own = [block for table in tables for block in table[2:]]
    assert len(set(own)) == len(own)
    computed = runner.steps[0].keys()
    assert len(computed) == 1  # the others wait for what the first one computes


@pytest.mark.parametrize("stream", [False, True])
def test_usage_counts_the_prompt_once_and_only_what_was_there_before_as_cached(stream: bool) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    with served() as (_, service):
        told = []
        for _ in range(2):
            response = complete(service, PROMPT, **FIELDS, **options)
            told.append((chunks(response)[-1] if stream else response.json())["usage"])
    for usage, cached in zip(told, (0, 8), strict=True):
        assert usage["prompt_tokens"] == len(PROMPT)
        assert usage["completion_tokens"] == 48
        assert usage["prompt_tokens_details"]["cached_tokens"] == cached


def test_each_child_says_what_it_says_alone() -> None:
    with served() as (_, service):
        fields = {**FIELDS, "logprobs": 2}
        together = complete(service, PROMPT, **fields).json()["choices"]
        for number, choice in enumerate(together):
            (alone,) = complete(service, PROMPT, **{**fields, "n": 1, "seed": 3 + number}).json()["choices"]
            assert alone == {**choice, "index": 0}
        assert len({choice["text"] for choice in together}) == 4
