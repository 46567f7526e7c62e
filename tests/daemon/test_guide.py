"""Answers are held to their structure token by token, and what must come is not asked for."""

import json
import re
import threading

import numpy as np
import pytest
from isotherm.daemon.errors import EngineError
from isotherm.daemon.guide import Guide, GuideWorkers
from isotherm.daemon.request import SamplingParams
from isotherm.daemon.sampler import Sampler
from isotherm.daemon.sequence import MAX_FORCED
from isotherm.daemon.structure import Structure
from isotherm.daemon.structures import StructureLimits, Structures
from support.structured import EOS, PADDED_SIZE, THINK_END, TOKENIZER, VOCAB_SIZE, answer, by_chance, compiled

PERSON = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Ann", "Bob"]},
        "age": {"type": "integer"},
        "kind": {"const": "a person, I think"},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}


@pytest.fixture
def workers():
    pool = GuideWorkers(1)
    yield pool
    pool.close()


def guide_of(constraint, workers, *, force=True, stop=(EOS,)) -> Guide:
    return Guide(constraint, stop, [EOS], workers, force=force)


def feed(guide: Guide, text: bytes) -> None:
    for byte in text:
        assert guide.allowed(PADDED_SIZE)[byte], (text, bytes([byte]))
        guide.accept(byte)


@pytest.mark.parametrize("seed", range(8))
def test_forced_answers_are_the_unforced_ones(seed: int) -> None:
    constraint = compiled(json.dumps(PERSON))
    forced = answer(constraint, by_chance(seed), force=True, seed=seed)
    asked = answer(constraint, by_chance(seed), force=False, seed=seed)
    assert forced == asked
    assert forced[1] and json.loads(TOKENIZER.text(forced[0]))["kind"] == PERSON["properties"]["kind"]["const"]


def test_what_must_come_is_appended_at_once(workers) -> None:
    guide = guide_of(compiled(json.dumps(PERSON)), workers)
    (first,) = np.flatnonzero(guide.allowed(PADDED_SIZE))
    follow = guide.accept(int(first))
    assert TOKENIZER.text([int(first), *follow.tokens]) == '{"name'  # '":' or '": "' may follow


def test_a_long_text_is_appended_in_parts(workers) -> None:
    guide = guide_of(compiled(json.dumps({"const": "x" * 100})), workers)
    assert len(guide.accept(ord('"')).tokens) == MAX_FORCED


def test_every_allowed_token_is_within_the_vocabulary_and_no_control_token(workers) -> None:
    allowed = guide_of(compiled("(?s:.*)", "regex"), workers).allowed(PADDED_SIZE)
    assert not allowed[VOCAB_SIZE:].any() and not allowed[THINK_END]
    assert allowed[ord("a")] and allowed[EOS]


def test_the_end_may_come_only_where_the_answer_may_end(workers) -> None:
    guide = guide_of(compiled("ab*", "regex"), workers, force=False)
    assert not guide.allowed(PADDED_SIZE)[EOS]
    guide.accept(ord("a"))
    assert guide.allowed(PADDED_SIZE)[EOS]
    assert guide.accept(EOS).complete


@pytest.mark.parametrize("force", [True, False])
def test_an_answer_that_cannot_go_on_is_complete(force: bool, workers) -> None:
    guide = guide_of(compiled("yes|no", "regex"), workers, force=force)
    first = guide.accept(ord("n"))
    last = first if force else guide.accept(ord("o"))
    assert last.complete and first.tokens == ((ord("o"),) if force else ())


@pytest.mark.parametrize("text", ['{"a":1}', '{"a": 1, "b": [1, 2]}', '{"a":{"b":"\\n  "}}'])
def test_a_space_may_follow_a_separator(text: str, workers) -> None:
    guide = guide_of(compiled('{"type": "object"}'), workers, force=False)
    feed(guide, text.encode())
    assert guide.allowed(PADDED_SIZE) is None or guide.accept(EOS).complete


@pytest.mark.parametrize("begun", [b"{", b'{"a":1', b'{"a": ', b'{"a":1, '])
def test_no_more_space_may_come(begun: bytes, workers) -> None:
    """[37] Models that may write spaces without end do so."""
    guide = guide_of(compiled('{"type": "object"}'), workers, force=False)
    feed(guide, begun)
    allowed = guide.allowed(PADDED_SIZE)
    assert not allowed[[ord("\n"), ord("\t"), TOKENIZER.tokens.index(b"  "), TOKENIZER.tokens.index(b"\n\n")]].any()
    assert begun.endswith(b"1") or not allowed[ord(" ")]


@pytest.mark.parametrize("kind", ["integer", "number"])
def test_a_number_comes_to_an_end(kind: str) -> None:
    """[38]"""
    zeros = np.full(PADDED_SIZE, -5.0, np.float32)
    zeros[[ord("0"), ord("1"), ord("."), TOKENIZER.tokens.index(b"0000")]] = 5.0

    ids, ended = answer(compiled(json.dumps({"type": kind})), lambda: zeros, temperature=0.0)
    assert ended and len(TOKENIZER.text(ids)) < 30


def test_a_number_that_must_be_long_may_be() -> None:
    constraint = compiled(json.dumps({"type": "integer", "minimum": 10**17, "maximum": 10**18 - 1}))
    assert 10**17 <= int(TOKENIZER.text(answer(constraint, by_chance(1))[0])) < 10**18


def test_digits_in_a_text_are_no_number(workers) -> None:
    guide = guide_of(compiled('{"type": "string"}'), workers, force=False)
    feed(guide, b'"\\"' + b"1" * 40)
    assert guide.allowed(PADDED_SIZE)[ord("1")]


def test_a_limit_of_complexity_fails_with_its_reason(workers) -> None:
    structures = Structures(TOKENIZER, StructureLimits(step_fuel=300))
    constraint = structures.compile(Structure("regex", "((((a{1,100}){1,100}){1,100}){1,100})"))
    guide = guide_of(constraint, workers)
    with pytest.raises(EngineError, match="too complex"):
        for _ in range(50):
            guide.allowed(PADDED_SIZE)
            guide.accept(ord("a"))
    assert constraint.broken


def test_what_may_come_is_computed_by_another_thread(workers) -> None:
    names: list[str] = []
    constraint = compiled("[a-z]*", "regex")
    guide = guide_of(constraint, workers)
    real = guide._compute
    guide._compute = lambda: (names.append(threading.current_thread().name), real())[1]
    guide.accept(ord("a"))
    guide.allowed(PADDED_SIZE)
    assert names and names[0].startswith("isotherm-guide")


class TestTrigger:
    """What comes before the trigger is free."""

    def free(self, guide: Guide, text: bytes) -> None:
        for byte in text:
            guide.accept(byte)

    def test_nothing_is_forbidden_before_it(self, workers) -> None:
        guide = guide_of(compiled("[0-9]", "regex", "</think>"), workers)
        self.free(guide, b"anything <thin")
        assert guide.allowed(PADDED_SIZE) is None or guide.allowed(PADDED_SIZE)[EOS]

    def test_the_answer_obeys_after_it(self, workers) -> None:
        guide = guide_of(compiled("[0-9]", "regex", "</think>"), workers)
        self.free(guide, b"hm</think>")
        allowed = np.flatnonzero(guide.allowed(PADDED_SIZE))
        assert bytes(allowed.tolist()) == b"0123456789"

    def test_it_may_begin_within_its_own_beginning(self, workers) -> None:
        guide = guide_of(compiled("[0-9]", "regex", "aab"), workers)
        self.free(guide, b"aaab")
        assert not guide.allowed(PADDED_SIZE)[ord("a")]

    def test_a_control_token_counts_by_its_name(self, workers) -> None:
        guide = guide_of(compiled("[0-9]", "regex", "<stop-thinking>"), workers)
        guide.accept(THINK_END)
        assert not guide.allowed(PADDED_SIZE)[ord("a")]

    def test_a_token_across_the_border_must_begin_the_structure(self, workers) -> None:
        guide = guide_of(compiled('{"type": "object"}', trigger="</think>"), workers)
        self.free(guide, b"</think")
        allowed = guide.allowed(PADDED_SIZE)
        tokens = TOKENIZER.tokens
        assert allowed[tokens.index(b">{")] and allowed[tokens.index(b">\n")] and not allowed[tokens.index(b">x")]
        guide.accept(tokens.index(b">{"))
        assert not guide.allowed(PADDED_SIZE)[ord("{")]
        assert guide.allowed(PADDED_SIZE)[ord("}")]

    def test_little_space_may_come_before_json(self, workers) -> None:
        guide = guide_of(compiled('{"type": "object"}', trigger="</think>"), workers)
        self.free(guide, b"</think>\n\n\n\n")
        assert bytes(i for i in np.flatnonzero(guide.allowed(PADDED_SIZE)) if i < 256) == b"{"

    @pytest.mark.parametrize("seed", range(6))
    def test_any_answer_with_a_trigger_obeys(self, seed: int) -> None:
        constraint = compiled(json.dumps(PERSON), trigger="ab")
        text = TOKENIZER.text(answer(constraint, by_chance(seed), logit_bias=((EOS, -50.0), (97, 5.0)))[0])
        _, found, tail = text.partition("ab")
        assert not found or json.loads(tail)["name"] in ("Ann", "Bob")


def test_the_sampler_leaves_logits_alone_where_all_may_come() -> None:
    row = by_chance(1)()
    plain = Sampler(SamplingParams(seed=5), ())
    guided = Sampler(SamplingParams(seed=5), ())
    assert [plain.sample(row) for _ in range(20)] == [guided.sample(row, None) for _ in range(20)]


def test_logprobs_are_those_of_the_model() -> None:
    row = by_chance(2)()
    allowed = np.zeros(PADDED_SIZE, np.bool_)
    allowed[7] = True
    _, logprobs = Sampler(SamplingParams(logprobs=3), ()).sample(row, allowed)
    _, expected = Sampler(SamplingParams(logprobs=3, logit_bias=((7, 100.0),)), ()).sample(row)
    assert logprobs == expected


def test_a_complete_answer_ends_though_it_is_short(workers) -> None:
    ids, ended = answer(compiled("[0-9]*x?", "regex"), by_chance(1), min_tokens=100, max_tokens=200)
    assert ended and re.fullmatch("[0-9]*x?", TOKENIZER.text(ids))
