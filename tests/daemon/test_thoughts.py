"""Reasoning that ends at a client's limit: what is due, and that the engine obeys."""

from dataclasses import replace

import pytest
from isotherm.daemon.messages import Submit, Token
from isotherm.daemon.structure import Structure
from isotherm.daemon.thoughts import ThoughtLimit, Thoughts
from support.engine_runs import assert_nothing_left, make_engine, messages_of, request, running, tokens_of
from support.fake_runner import FakeRunner
from support.structured import PADDED_SIZE, STRUCTURES, THINK_END, TOKENIZER

END = "<stop-thinking>"


def limit(tokens: int, opening: str = "", closing: str = END) -> ThoughtLimit:
    ids = (THINK_END,) if closing == END else tuple(closing.encode())
    table = TOKENIZER.tokens
    return ThoughtLimit(
        tokens=tokens,
        opening=opening.encode(),
        closing=closing.encode(),
        closing_ids=ids,
        token_bytes=lambda token: table[token] if token < len(table) else b"",
    )


def written(model: str, limited: ThoughtLimit, count: int = 40) -> str:
    """What comes of a model that says these characters one by one, whatever happens."""
    thoughts, wish, text = Thoughts(limited), iter(model), ""
    for _ in range(count):
        token = thoughts.due
        if token is None:
            following = next(wish, None)
            if following is None:
                break
            token = ord(following)
        thoughts.accept(token)
        text += TOKENIZER.tokens[token].decode()
    return text


@pytest.mark.parametrize(
    ("model", "tokens", "opening", "closing", "text"),
    [
        ("abcdef", 3, "", END, f"abc{END}def"),
        ("abcdef", 0, "", END, f"{END}abcdef"),
        ("abcdef", 9, "", END, "abcdef"),
        ("abcdef", 3, "", "</t>", "abc</t>def"),
        ("ab</t>cdef", 6, "", "</t>", "ab</t>cdef"),
        ("ab</t>cdef", 4, "", "</t>", "ab</</t>t>cdef"),  # begun, not closed
        ("<t>abcdef", 3, "<t>", "</t>", "<t>abc</t>def"),
        ("\n <t>abcdef", 0, "<t>", "</t>", "\n <t></t>abcdef"),
        ("abc<t>def", 1, "<t>", "</t>", "abc<t>def"),  # it does not reason
        ("<tabcdef", 1, "<t>", "</t>", "<tabcdef"),
        ("<t>ab</t>c<t>def", 3, "<t>", "</t>", "<t>ab<</t>/t>c<t>def"),
        ("<t>ab</t>c<t>def", 6, "<t>", "</t>", "<t>ab</t>c<t>def"),  # only the first thoughts count
    ],
)
def test_the_end_comes_after_so_many_tokens(model: str, tokens: int, opening: str, closing: str, text: str) -> None:
    assert written(model, limit(tokens, opening, closing)) == text


def bounded(name: str, tokens: int, **sampling) -> Submit:
    return replace(request(name, **{"max_tokens": 20, **sampling}), thoughts=limit(tokens))


def said(*submits: Submit, **options) -> list[list[Token]]:
    """The tokens of requests that run together."""
    engine = make_engine(FakeRunner(vocab_size=PADDED_SIZE, **options))
    mailboxes = [engine.client.submit(submit) for submit in submits]
    with running(engine):
        told = [[each for each in messages_of(box) if isinstance(each, Token)] for box in mailboxes]
        assert_nothing_left(engine)
    return [[replace(token, request_id="") for token in tokens] for tokens in told]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 4}])
def test_the_model_goes_on_after_the_end_as_if_it_had_written_it(sampling: dict[str, float]) -> None:
    ((tokens),) = said(bounded("a", 5, logprobs=2, **sampling))
    free = tokens_of(said(request("a", max_tokens=20, **sampling))[0])
    ids = tokens_of(tokens)
    assert ids[:6] == [*free[:5], THINK_END] and len(ids) == 20
    assert all(token.logprobs is not None and token.logprobs.logprob < 0 for token in tokens)
    if not sampling:
        engine = FakeRunner(vocab_size=PADDED_SIZE)
        assert ids[6:] == engine.greedy([1, 2, 3, *ids[:6]], 14)


def test_batch_and_preemption_change_nothing() -> None:
    submits = [bounded(f"r{i}", 2 + i, logprobs=1, temperature=0.9, seed=i) for i in range(5)]
    submits.append(request("plain", max_tokens=20))
    alone = [said(submit)[0] for submit in submits]
    assert said(*submits) == alone
    assert said(*submits, num_blocks=12, block_size=2) == alone


def test_a_form_that_waits_for_the_end_of_thoughts_begins_there() -> None:
    form = Structure("regex", "[0-9]{4}", END)
    submit = bounded("a", 3, structure=form)
    ((tokens),) = said(replace(submit, constraint=STRUCTURES.compile(form)))
    ids = tokens_of(tokens)
    assert ids[3] == THINK_END and TOKENIZER.text(ids[4:]).isdigit() and len(TOKENIZER.text(ids[4:])) == 4


def test_bans_do_not_hold_the_end_back() -> None:
    ((tokens),) = said(bounded("a", 3, allowed_token_ids=frozenset({5, 6})))
    ids = tokens_of(tokens)
    assert ids[3] == THINK_END and {*ids[:3], *ids[4:]} <= {5, 6}
