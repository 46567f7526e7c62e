"""From tokens to events: what is told does not depend on what tokens hold, nor on how they are gathered."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from isotherm.api.chat.dialect import join_events
from isotherm.api.chat.events import CallBegan, ChatEvent, Ended, Text
from isotherm.api.generation import Choice
from isotherm.daemon.messages import Finished, FromEngine, Submit, Token, Usage
from isotherm.daemon.request import SamplingParams
from isotherm.daemon.text import TextStream
from isotherm.daemon.tokenizer import Detokenizer
from support.dialogues import FAMILIES, Family, speech, wish

REPETITIONS = settings(max_examples=60)
CUTS = st.lists(st.integers(0, 4000), max_size=30)


def parts(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(places)]


def choice_of(family: Family, texts: list[bytes], stop: tuple[str, ...], *, single: bool) -> tuple[Choice, list[Token]]:
    """One whose token i is the i-th of the texts."""
    submit = Submit(request_id="r", prompt=(1,), sampling=SamplingParams(stop=stop), eos_token_ids=frozenset())
    reading = speech(family.template).reading(wish(parallel_tool_calls=not single), family.prefix)
    text = TextStream(Detokenizer(texts), stop)
    choice = Choice(0, submit, None, text, reading)  # type: ignore[arg-type]
    return choice, [Token("r", i) for i in range(len(texts))]


def told(
    family: Family,
    answer: bytes,
    cuts: list[int],
    batches: list[int],
    stop: tuple[str, ...] = (),
    *,
    single: bool = False,
) -> tuple[list[ChatEvent], list[int], int, int]:
    """Events without ids, reported tokens, their count, and how many were reasoning."""
    choice, tokens = choice_of(family, parts(answer, cuts), stop, single=single)
    usage = Usage(prompt_tokens=1, cached_tokens=0, completion_tokens=len(tokens))
    messages: list[FromEngine] = [*tokens, Finished(request_id="r", reason="stop", usage=usage)]
    places = sorted({0, len(messages), *(batch % (len(messages) + 1) for batch in batches)})
    pieces = [piece for start, end in pairwise(places) if (piece := choice.take(messages[start:end])) is not None]
    events = join_events(event for piece in pieces for event in piece.events)
    assert choice.usage is not None
    reported = [token.token_id for piece in pieces for token in piece.tokens]
    bare = [CallBegan(each.index, "", each.name) if isinstance(each, CallBegan) else each for each in events]
    return bare, reported, choice.usage.completion_tokens, choice._reading.reasoning_tokens  # type: ignore[union-attr]


@REPETITIONS
@given(family=st.sampled_from(FAMILIES), cuts=CUTS, batches=CUTS, end=st.integers(0, 4000), broken=st.booleans())
def test_tokens_may_end_anywhere(family: Family, cuts: list[int], batches: list[int], end: int, broken: bool) -> None:
    """[5, 12, 63] Inside of characters and of tags; also where the answer ends too early."""
    answer = family.answer.encode()[: end if broken else None]
    whole, *_ = told(family, answer, [], [])
    events, *_ = told(family, answer, cuts, batches)
    assert events == whole
    assert isinstance(events[-1], Ended)


@REPETITIONS
@given(family=st.sampled_from(FAMILIES), cuts=CUTS, batches=CUTS, stop=st.text('aeG\n<"{}', min_size=1, max_size=3))
def test_stop_strings_end_the_same_text(family: Family, cuts: list[int], batches: list[int], stop: str) -> None:
    """[1, 2, 3]"""
    answer = family.answer.encode()
    events, *_ = told(family, answer, cuts, batches, (stop,))
    cut, found, _ = family.answer.partition(stop)
    whole, *_ = told(family, cut.encode(), [], [])
    assert events[:-1] == whole[:-1]
    end = events[-1]
    assert isinstance(end, Ended)
    assert end.stop_string == (stop if found else None)


@REPETITIONS
@given(family=st.sampled_from(FAMILIES), cuts=CUTS, batches=CUTS, single=st.booleans())
def test_how_messages_are_gathered_changes_nothing(
    family: Family, cuts: list[int], batches: list[int], single: bool
) -> None:
    """[24] Not the tokens that are reported, nor any count, even where the first call ends the answer."""
    answer = family.answer.encode()
    one_by_one = told(family, answer, cuts, list(range(len(answer) + 2)), single=single)
    gathered = told(family, answer, cuts, batches, single=single)
    assert gathered == one_by_one
    reported = gathered[1]
    assert reported == list(range(len(reported)))
    assert single or len(reported) == len(parts(answer, cuts))
    calls = [event for event in gathered[0] if isinstance(event, CallBegan)]
    assert len(calls) == (1 if single else 2)


def test_text_after_the_last_wanted_call_is_not_told() -> None:
    events, *_ = told(FAMILIES[0], FAMILIES[0].answer.encode() + b"more", [], [], single=True)
    assert "more" not in "".join(event.text for event in events if isinstance(event, Text))
