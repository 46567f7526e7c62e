"""Log-probabilities of prompts and embeddings: what the engine gives does not depend on how a prompt was computed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isotherm.daemon.budget import StepBudget
from isotherm.daemon.engine import Engine
from isotherm.daemon.errors import InvalidRequestError
from isotherm.daemon.inbox import QueueLimits
from isotherm.daemon.kv_cache import BlockPool
from isotherm.daemon.messages import Embedding, Finished, FromEngine, PromptLogprobs, Submit, Token
from isotherm.daemon.request import SamplingParams
from isotherm.daemon.scheduler import Scheduler
from isotherm.daemon.step_rows import RowLimits
from support.engine_runs import assert_nothing_left, make_engine, messages_of, request, running, tokens_of
from support.fake_runner import FakeRunner

PROMPT = (5, 9, 2, 9, 9, 1, 30, 8, 4, 4, 17)


class RowRunner(FakeRunner):
    """Refuses a step that wants more rows than `limits` allow, and counts the most that one wanted."""

    def __init__(self, limits: RowLimits, **options) -> None:
        super().__init__(**options)
        self.limits = limits

    def execute(self, plan):
        rows, states = (sum(getattr(chunk, name) for chunk in plan.chunks) for name in ("rows", "states"))
        assert rows + (states if self.limits.states_are_rows else 0) <= self.limits.rows
        assert not any(chunk.rows and chunk.states for chunk in plan.chunks)
        return super().execute(plan)


def row_engine(runner: RowRunner, *, max_running: int = 4) -> Engine:
    scheduler = Scheduler(
        BlockPool(runner.num_blocks, runner.block_size),
        max_running=max_running,
        max_step_tokens=runner.max_step_tokens,
        max_context=runner.max_context,
        budget=StepBudget(1e9, runner.max_step_tokens),
        rows=runner.limits,
    )
    return Engine(runner, scheduler, QueueLimits(max_queued=100, max_queued_tokens=10_000))


def embed(name: str, prompt: tuple[int, ...], pooling: str) -> Submit:
    sampling = SamplingParams(max_tokens=0)
    return Submit(request_id=name, prompt=prompt, sampling=sampling, eos_token_ids=frozenset(), pooling=pooling)


def answer(submit: Submit, engine: Engine | None = None) -> list[FromEngine]:
    engine = engine or make_engine()
    with running(engine) as client:
        messages = messages_of(client.submit(submit))
        assert_nothing_left(engine)
    return messages


def drawn_there(prompt: tuple[int, ...], top: int) -> list:
    """What generation says of each token of a prompt: None, then a request for each that can draw nothing else."""
    told = [None]
    with running(make_engine()) as client:
        for end in range(1, len(prompt)):
            only = frozenset({prompt[end]})
            submit = request("a", prompt[:end], max_tokens=1, logprobs=top, allowed_token_ids=only)
            told.append(messages_of(client.submit(submit))[0].logprobs)
    return told


def vector(messages: list[FromEngine]):
    (embedding,) = [message.values for message in messages if isinstance(message, Embedding)]
    return embedding


def test_a_prompt_s_logprobs_are_those_of_drawing_its_tokens() -> None:
    messages = answer(request(prompt=PROMPT, prompt_logprobs=3))
    assert isinstance(messages[0], PromptLogprobs)
    assert list(messages[0].logprobs) == drawn_there(PROMPT, 3)


def test_the_answer_is_the_same_as_without() -> None:
    assert tokens_of(answer(request(prompt=PROMPT, prompt_logprobs=0))) == tokens_of(answer(request(prompt=PROMPT)))


def test_a_prompt_of_one_token_has_none() -> None:
    messages = answer(request(prompt=(3,), prompt_logprobs=1))
    assert messages[0] == PromptLogprobs("a", (None,))


def test_a_request_for_no_token_ends_when_its_prompt_is_computed() -> None:
    told, finished = answer(request(prompt=PROMPT, prompt_logprobs=0, max_tokens=0))
    assert isinstance(told, PromptLogprobs)
    assert isinstance(finished, Finished)
    assert (finished.reason, finished.usage.completion_tokens) == ("length", 0)


def test_a_request_for_no_token_needs_no_logits() -> None:
    (finished,) = answer(request(prompt=PROMPT, max_tokens=0), row_engine(RowRunner(RowLimits(4), max_step_tokens=4)))
    assert isinstance(finished, Finished)


def test_a_cached_prompt_is_computed_again_and_reused_by_others() -> None:
    with running(make_engine()) as client:
        messages_of(client.submit(request("before", PROMPT)))
        *rest, finished = messages_of(client.submit(request("a", PROMPT, prompt_logprobs=2)))
        assert list(rest[0].logprobs) == drawn_there(PROMPT, 2)
        assert finished.usage.cached_tokens == 0
        assert messages_of(client.submit(request("after", PROMPT)))[-1].usage.cached_tokens == 8


def test_the_stop_token_s_logprobs_come_with_the_end() -> None:
    first = tokens_of(answer(request(prompt=PROMPT)))[0]
    (finished,) = answer(request(prompt=PROMPT, stop_token_ids=frozenset({first}), logprobs=1))
    assert finished.stop_logprobs.top[0][0] == first


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_an_embedding_pools_states(pooling: str) -> None:
    runner = FakeRunner()
    embedding, finished = answer(embed("a", PROMPT, pooling), make_engine(runner))
    states = np.stack([answers_state(runner, PROMPT[: end + 1]) for end in range(len(PROMPT))])
    expected = states.astype(np.float64).mean(axis=0) if pooling == "mean" else states[-1]
    np.testing.assert_allclose(embedding.values, expected, rtol=1e-6, atol=1e-7)
    assert finished.usage.completion_tokens == 0


def answers_state(runner: FakeRunner, prompt: tuple[int, ...]):
    """The fake model's state after a prompt: an embedding of its last position, from an engine of its own."""
    return vector(answer(embed("x", prompt, "last")))


def test_the_last_position_s_embedding_reuses_the_prefix() -> None:
    with running(make_engine()) as client:
        alone = vector(messages_of(client.submit(embed("a", PROMPT, "last"))))
        *rest, finished = messages_of(client.submit(embed("b", PROMPT, "last")))
        assert finished.usage.cached_tokens == 8
        np.testing.assert_array_equal(vector(rest), alone)


def test_an_embedding_with_tokens_is_refused() -> None:
    submit = Submit(request_id="a", prompt=PROMPT, sampling=SamplingParams(), eos_token_ids=frozenset(), pooling="mean")
    with running(make_engine()) as client, pytest.raises(InvalidRequestError, match="max_tokens must be 0"):
        client.submit(submit)


KINDS = ("plain", "scored", "mean", "last")


@settings(max_examples=60)
@given(
    wishes=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 11), st.integers(0, 3)), min_size=1, max_size=6),
    rows=st.integers(4, 9),
    states_are_rows=st.booleans(),
    max_step_tokens=st.integers(4, 24),
    num_blocks=st.integers(5, 16),
)
def test_any_company(wishes, rows: int, states_are_rows: bool, max_step_tokens: int, num_blocks: int) -> None:
    """Cut by limits of rows, tokens and blocks, each request gets what it gets alone."""
    submits = []
    for number, (kind, length, count) in enumerate(wishes):
        prompt, name = PROMPT[-length:], f"r{number}"
        scored = {"prompt_logprobs": 2} if kind == "scored" else {}
        plain = request(name, prompt, max_tokens=count or 1, **scored)
        submits.append(embed(name, prompt, kind) if kind in ("mean", "last") else plain)
    limits = RowLimits(rows, states_are_rows)
    engine = row_engine(RowRunner(limits, max_step_tokens=max_step_tokens, num_blocks=num_blocks))
    with running(engine) as client:
        mailboxes = [client.submit(submit) for submit in submits]
        together = [messages_of(mailbox) for mailbox in mailboxes]
        assert_nothing_left(engine)
    for submit, messages in zip(submits, together, strict=True):
        alone = answer(submit)
        assert [type(message) for message in messages] == [type(message) for message in alone]
        for got, expected in zip(messages, alone, strict=True):
            if isinstance(got, Embedding):
                np.testing.assert_array_equal(got.values, expected.values)
            elif isinstance(got, Token | PromptLogprobs):
                assert got == expected
