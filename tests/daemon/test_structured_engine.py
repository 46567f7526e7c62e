"""Structured requests in the engine: beside plain ones, preempted, asked for log-probabilities, broken."""

import json

import numpy as np
import pytest
from isotherm.daemon.budget import StepBudget
from isotherm.daemon.engine import Engine
from isotherm.daemon.errors import EngineError
from isotherm.daemon.inbox import QueueLimits
from isotherm.daemon.kv_cache import BlockPool
from isotherm.daemon.messages import Failed, Finished, Submit, Token
from isotherm.daemon.request import SamplingParams
from isotherm.daemon.scheduler import Scheduler
from isotherm.daemon.structure import Structure
from isotherm.daemon.structures import StructureLimits, Structures
from support.engine_runs import (
    GatedRunner,
    assert_nothing_left,
    make_engine,
    messages_of,
    request,
    running,
    tokens_of,
    until,
)
from support.fake_runner import FakeRunner
from support.structured import EOS, PADDED_SIZE, STRUCTURES, TOKENIZER

SCHEMA = {
    "type": "object",
    "properties": {
        "answer": {"enum": ["yes, of course", "no, never"]},
        "digits": {"type": "string", "pattern": "^[0-9]{1,9}$"},
        "reason": {"const": "because it is as it is and was as it was"},
    },
    "required": ["answer", "digits", "reason"],
    "additionalProperties": False,
}
JSON = Structure("json_schema", json.dumps(SCHEMA))


def structured(name: str, structure: Structure = JSON, structures: Structures = STRUCTURES, **sampling) -> Submit:
    params = SamplingParams(**{"temperature": 0.7, "seed": 3, "max_tokens": 150, "structure": structure, **sampling})
    return Submit(
        request_id=name,
        prompt=(1, 2, 3),
        sampling=params,
        eos_token_ids=frozenset({EOS}),
        constraint=structures.compile(structure),
    )


def runner_of(**options) -> FakeRunner:
    return FakeRunner(**{"vocab_size": PADDED_SIZE, "num_blocks": 200, "max_context": 256, **options})


def serve(*submits: Submit, runner: FakeRunner | None = None) -> tuple[list[list[object]], FakeRunner]:
    """The messages of each request when all run together."""
    runner = runner or runner_of()
    engine = make_engine(runner)
    mailboxes = [engine.client.submit(submit) for submit in submits]  # before it starts: they are in one batch
    with running(engine):
        messages = [messages_of(mailbox) for mailbox in mailboxes]
        assert_nothing_left(engine)
    return messages, runner


def alone(submit: Submit) -> list[int]:
    ((messages,), _) = serve(submit)
    return tokens_of(messages)


def test_an_answer_has_its_form_and_ends_by_itself() -> None:
    ((messages,), runner) = serve(structured("a"))
    tokens, end = tokens_of(messages), messages[-1]
    assert json.loads(TOKENIZER.text(tokens))["reason"] == SCHEMA["properties"]["reason"]["const"]
    assert isinstance(end, Finished) and end.reason == "stop" and end.stop_token is None
    assert end.usage.completion_tokens == len(tokens)
    assert runner.num_calls < len(tokens) / 2  # most of it was forced


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.0}, {"repetition_penalty": 1.3, "presence_penalty": 0.5}])
def test_with_log_probabilities_each_token_is_computed_and_the_same(sampling: dict[str, float]) -> None:
    ((forced,), _) = serve(structured("a", **sampling))
    ((asked,), runner) = serve(structured("a", logprobs=2, **sampling))
    assert tokens_of(asked) == tokens_of(forced)
    assert runner.num_calls == len(tokens_of(asked))
    assert all(message.logprobs.logprob < 0 for message in asked if isinstance(message, Token))


def test_structured_and_plain_requests_do_not_change_each_other() -> None:
    submits = [
        structured("json"),
        request("greedy", max_tokens=30),
        structured("choice", Structure("regex", "left|right|straight on")),
        request("drawn", (5, 6, 7), temperature=1.0, seed=9, max_tokens=30),
        structured("thinking", Structure("regex", "[0-9]{4}", "a"), logit_bias=((97, 6.0),)),
        structured("with log-probabilities", logprobs=1, seed=5),
    ]
    expected = [alone(submit) for submit in submits]
    for runner in (runner_of(), runner_of(max_step_tokens=8), runner_of(block_size=1, num_blocks=600)):
        together, _ = serve(*submits, runner=runner)
        assert [tokens_of(messages) for messages in together] == expected


def test_preemption_changes_no_token() -> None:
    submits = [structured(f"r{i}", seed=i) for i in range(6)]
    expected = [alone(submit) for submit in submits]
    runner = runner_of(num_blocks=30)  # of 4 tokens each: little more than one answer fits
    engine = make_engine(runner)
    mailboxes = [engine.client.submit(submit) for submit in submits]
    with running(engine):
        assert [tokens_of(messages_of(mailbox)) for mailbox in mailboxes] == expected
        assert engine.stats().preemptions > 0


@pytest.mark.parametrize("max_tokens", [1, 2, 9, 30])
def test_max_tokens_cuts_what_is_forced(max_tokens: int) -> None:
    ((messages,), _) = serve(structured("a", max_tokens=max_tokens))
    end = messages[-1]
    assert isinstance(end, Finished)
    assert (end.reason, end.usage.completion_tokens) == ("length", max_tokens)
    assert tokens_of(messages) == alone(structured("a"))[:max_tokens]


def test_the_context_cuts_what_is_forced() -> None:
    ((messages,), _) = serve(structured("a"), runner=runner_of(max_context=20))
    assert messages[-1].reason == "length" and len(tokens_of(messages)) == 17


def test_min_tokens_does_not_keep_a_complete_answer_open() -> None:
    ((messages,), _) = serve(structured("a", Structure("regex", "[0-9]{3}"), min_tokens=100, max_tokens=150))
    assert messages[-1].reason == "stop" and len(tokens_of(messages)) <= 3


def test_an_ignored_end_ends_what_cannot_go_on() -> None:
    ((messages,), _) = serve(structured("a", Structure("json_schema", '{"type": "integer"}'), ignore_eos=True))
    assert messages[-1].reason == "stop"
    int(TOKENIZER.text(tokens_of(messages)))


def test_an_answer_that_grows_too_complex_fails_alone() -> None:
    """[40]"""
    bad = Structures(TOKENIZER, StructureLimits(step_fuel=300))
    complex_one = structured("bad", Structure("regex", "((((a{1,100}){1,100}){1,100}){1,100})"), bad)
    (failed, fine, plain), _ = serve(complex_one, structured("a"), request("b"))
    assert isinstance(failed[-1], Failed) and isinstance(failed[-1].error, EngineError)
    assert "too complex" in str(failed[-1].error)
    assert tokens_of(fine) == alone(structured("a"))
    assert isinstance(plain[-1], Finished)


def test_what_may_come_next_is_ready_before_the_step_ends() -> None:
    runner = GatedRunner(vocab_size=PADDED_SIZE, num_blocks=100)
    engine = make_engine(runner)
    with running(engine) as client:
        mailbox = client.submit(structured("a", Structure("regex", "[a-z]{9}")))
        runner.wait_for_step()
        runner.permits.release()
        runner.wait_for_step()  # the second step, which cannot end
        guide = engine._requests["a"].guide
        until(lambda: guide._next.done())
        runner.let_go()
        assert isinstance(messages_of(mailbox)[-1], Finished)


def test_an_abort_in_the_middle_leaves_nothing() -> None:
    runner = GatedRunner(vocab_size=PADDED_SIZE, num_blocks=100)
    engine = make_engine(runner)
    with running(engine) as client:
        mailbox = client.submit(structured("a", Structure("regex", "[a-z]*")))
        runner.wait_for_step()
        client.abort("a")
        runner.let_go()
        assert messages_of(mailbox)[-1].reason == "abort"
        assert_nothing_left(engine)


def test_a_structure_must_have_been_compiled() -> None:
    engine = make_engine(runner_of())
    bare = Submit(request_id="a", prompt=(1,), sampling=SamplingParams(structure=JSON), eos_token_ids=frozenset({EOS}))
    with pytest.raises(ValueError, match="compiled"):
        engine.client.submit(bare)
    engine.stop()


def test_the_threads_end_with_the_engine() -> None:
    engine = make_engine(runner_of())
    with running(engine):
        messages_of(engine.client.submit(structured("a")))
        threads = list(engine._guide_workers._pool._threads)
        assert all(thread.is_alive() for thread in threads) and threads
    until(lambda: not any(thread.is_alive() for thread in threads))


def test_a_stream_gets_a_token_while_others_force_many() -> None:
    """With room for one token each, what is forced is computed over several steps."""
    runner = runner_of(max_step_tokens=4)
    scheduler = Scheduler(
        BlockPool(runner.num_blocks, runner.block_size),
        max_running=4,
        max_step_tokens=4,
        max_context=256,
        budget=StepBudget(0.1, 4),
    )
    engine = Engine(runner, scheduler, QueueLimits(max_queued=10, max_queued_tokens=1000))
    mailboxes = [engine.client.submit(structured(f"r{i}", seed=i)) for i in range(4)]
    with running(engine):
        texts = [tokens_of(messages_of(mailbox)) for mailbox in mailboxes]
    assert texts == [alone(structured(f"r{i}", seed=i)) for i in range(4)]
    assert np.mean([len(text) for text in texts]) > 40
