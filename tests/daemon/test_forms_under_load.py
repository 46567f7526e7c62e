"""Plain requests, requests for a form, for calls and with bounded thoughts, all on one engine that computes a model.

Each is told to the last bit what it is told alone: whatever is beside it, from the prefix cache, after preemption.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from isotherm.api.tools.formats import detect
from isotherm.api.tools.grammar import calls_rule
from isotherm.api.tools.lark import Lark
from isotherm.api.tools.shapes import shape_of
from isotherm.daemon.assembly import tokenizer_of
from isotherm.daemon.engine import Engine
from isotherm.daemon.structure import Structure
from isotherm.daemon.structures import Structures
from isotherm.daemon.thoughts import ThoughtLimit
from isotherm.daemon.tokenizer import Tokenizer
from isotherm.experts.model import open_model
from support.engine_runs import assert_nothing_left, make_engine
from support.engines import engine as runner_of
from support.load import CONTEXT, Answer, Wish, check, one_by_one, together, wishes
from support.tiny import VOCAB_SIZE, write_gguf

END = frozenset({VOCAB_SIZE - 1})  # of answers with a form: the load's ends are letters, which forms need
TEMPLATE = "tools <tool_call>"
ARGUMENTS = {"type": "object", "properties": {"city": {"enum": ["here", "there"]}}, "required": ["city"]}
SCHEMA = '{"type": "object", "properties": {"yes": {"type": "boolean"}, "n": {"type": "integer"}}, "required": ["yes"]}'


def _calls() -> Structure:
    lark = Lark({})
    rule = calls_rule(lark, shape_of(detect(TEMPLATE), TEMPLATE), {"weather": ARGUMENTS, "clock": {}}, single=False)
    return Structure("lark", lark.source(rule))


def _thoughts(tokenizer: Tokenizer, number: int) -> ThoughtLimit:
    ids = tuple(tokenizer.encode("</think>", add_special=False))
    return ThoughtLimit(
        tokens=number, opening=b"", closing=b"</think>", closing_ids=ids, token_bytes=tokenizer.token_bytes
    )


def mixed(tokenizer: Tokenizer, count: int) -> list[Wish]:
    """Every other one has a form, calls, a form that waits for the end of thoughts, or bounded thoughts alone."""
    forms = (Structure("json_schema", SCHEMA), _calls(), Structure("json_schema", SCHEMA, "</think>"), None)
    structures = Structures(tokenizer)
    made = []
    for number, wish in enumerate(wishes(VOCAB_SIZE, count, seed=5)):
        form, submit = forms[number // 2 % len(forms)] if number % 2 else None, wish.submit
        room = min(70, CONTEXT - len(submit.prompt))  # so that they outgrow what there is
        sampling = replace(submit.sampling, structure=form, max_tokens=room, ignore_eos=form is None)
        submit = replace(submit, sampling=sampling)
        if number % 2:
            thoughts = _thoughts(tokenizer, number % 5) if number // 2 % len(forms) > 1 else None
            submit = replace(submit, thoughts=thoughts)
            if form is not None:
                submit = replace(submit, constraint=structures.compile(form), eos_token_ids=END)
        made.append(replace(wish, submit=submit))
    return made


@contextmanager
def computing(path: Path) -> Iterator[Engine]:
    """An engine with room for three full contexts, not started."""
    with runner_of(
        path, threads=2, num_blocks=12, max_context=CONTEXT, max_step_tokens=48, max_running=8, kv_cache="int16"
    ) as runner:
        engine = make_engine(runner)
        try:
            yield engine
        finally:
            engine.stop()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_gguf(path, "qwen3_moe", "Q4_0")
    return path


@pytest.fixture(scope="module")
def given(model: Path) -> list[Wish]:
    return mixed(tokenizer_of(open_model(model)), 32)


@pytest.fixture(scope="module")
def alone(model: Path, given: list[Wish]) -> dict[str, Answer]:
    with computing(model) as engine:
        engine.start()
        return one_by_one(engine.client, given)


def test_no_request_changes_another(model: Path, given: list[Wish], alone: dict[str, Answer]) -> None:
    with computing(model) as engine:
        check(given, together(engine, given), alone)
        assert_nothing_left(engine)
        stats = engine.stats()
        assert stats.preemptions > 0 and stats.prefix_hit_tokens > 0


def test_they_are_of_all_kinds(model: Path, given: list[Wish], alone: dict[str, Answer]) -> None:
    """That the test above compares what it says it does."""
    tokenizer, texts = tokenizer_of(open_model(model)), []
    kinds = {(wish.submit.constraint is not None, wish.submit.thoughts is not None) for wish in given}
    assert len(kinds) == 4
    for wish in given:
        ids = tuple(token.token_id for token in alone[wish.submit.request_id].tokens)
        thoughts = wish.submit.thoughts
        if thoughts is not None and len(ids) >= thoughts.tokens + len(thoughts.closing_ids):
            assert ids[thoughts.tokens :][: len(thoughts.closing_ids)] == thoughts.closing_ids
        texts.append(tokenizer.decode(ids))
    for beginning in ('{"yes"', '<tool_call>\n{"name"'):
        assert any(text.startswith(beginning) for text in texts), beginning
    assert any('</think>{"yes"' in text for text in texts)
