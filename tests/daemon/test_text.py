from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from isotherm.daemon.messages import Token, TokenLogprobs
from isotherm.daemon.text import TextDelta, TextStream
from isotherm.daemon.tokenizer import Tokenizer
from support.vocab import sentencepiece_metadata


class Pieces:
    """A detokenizer whose token i is the i-th piece."""

    def __init__(self, pieces: list[str], tail: str = "") -> None:
        self._pieces = pieces
        self._tail = tail

    def push(self, token_id: int) -> str:
        return self._pieces[token_id]

    def finish(self) -> str:
        return self._tail


def stream(pieces: list[str], stop: tuple[str, ...] = (), tail: str = "") -> tuple[TextStream, list[TextDelta | None]]:
    """Push every piece; the stream and the answer to each push."""
    text = TextStream(Pieces(pieces, tail), stop)
    return text, [text.push(Token("r", i)) for i in range(len(pieces))]


def run(pieces: list[str], stop: tuple[str, ...] = (), tail: str = "") -> tuple[str, list[int], str | None]:
    """The whole text, the ids of the reported tokens and the stop string."""
    text, deltas = stream(pieces, stop, tail)
    given_out = [delta for delta in [*deltas, text.finish()] if delta is not None]
    ids = [token.token_id for delta in given_out for token in delta.tokens]
    return "".join(delta.text for delta in given_out), ids, text.stopped


def texts(deltas: list[TextDelta | None]) -> list[str | None]:
    return [None if delta is None else delta.text for delta in deltas]


def test_without_stop_strings_every_token_is_released_at_once() -> None:
    _, deltas = stream(["Hel", "lo"])
    assert deltas == [TextDelta("Hel", (Token("r", 0),), (0,)), TextDelta("lo", (Token("r", 1),), (3,))]


def test_the_beginning_of_a_stop_string_is_held_until_it_is_refuted() -> None:
    """[1]"""
    _, deltas = stream(["a E", "N", "D?"], ("END!",))
    assert texts(deltas) == ["a ", None, "END?"]


def test_what_is_held_is_the_longest_end_that_may_begin_a_stop_string_and_no_more() -> None:
    _, deltas = stream(["aab", "aac"], ("aabaaX",))
    assert texts(deltas) == [None, "aabaac"]
    _, deltas = stream(["xxaab"], ("aabaaX", "bY"))
    assert texts(deltas) == ["xx"]
    _, deltas = stream(["aabaab"], ("aabaaX",))
    assert texts(deltas) == ["aab"]  # "aab" may still begin it


def test_a_stop_string_across_tokens_is_found() -> None:
    """[2]"""
    assert run(["one ST", "O", "P two"], ("STOP",)) == ("one ", [0], "STOP")


def test_a_stop_string_inside_one_token_is_found() -> None:
    assert run(["one STOP two"], ("STOP",)) == ("one ", [0], "STOP")


def test_the_stop_string_that_completes_first_wins() -> None:
    assert run(["abcd"], ("abcd", "bc"))[::2] == ("a", "bc")


def test_of_stop_strings_that_end_together_the_longest_wins() -> None:
    assert run(["xabc"], ("c", "abc", "bc"))[::2] == ("x", "abc")


def test_held_text_is_released_at_the_end() -> None:
    """[4]"""
    text, deltas = stream(["so", " ST"], ("STOP",))
    assert texts(deltas) == ["so", " "]
    assert text.finish() == TextDelta("ST", (), ())


def test_a_token_whose_whole_text_is_held_comes_with_its_text() -> None:
    text, deltas = stream(["so ", "ST"], ("STOP",))
    assert texts(deltas) == ["so ", None]
    assert text.finish() == TextDelta("ST", (Token("r", 1),), (3,))


def test_the_detokenizers_last_text_is_released_at_the_end() -> None:
    assert run(["a", ""], tail="�") == ("a�", [0, 1], None)


def test_a_stop_string_that_the_last_text_completes_is_found() -> None:
    assert run(["a", "x"], ("x�",), tail="�") == ("a", [0], "x�")


def test_tokens_after_the_stop_are_ignored() -> None:
    assert run(["a", "STOP", "b", "c"], ("STOP",)) == ("a", [0], "STOP")


def test_a_token_that_begins_before_the_stop_string_is_reported_and_one_inside_it_is_not() -> None:
    assert run(["a", "bST", "OP"], ("STOP",)) == ("ab", [0, 1], "STOP")


def test_tokens_without_text_come_with_the_character_that_they_begin() -> None:
    _, deltas = stream(["", "", "é", "x"])
    assert [delta and [token.token_id for token in delta.tokens] for delta in deltas] == [None, None, [0, 1, 2], [3]]


def test_logprobs_travel_with_their_token() -> None:
    text = TextStream(Pieces(["S", "x"]), ("STOP",))
    first, second = Token("r", 0, TokenLogprobs(-0.5)), Token("r", 1, TokenLogprobs(-1.5, ((1, -1.5),)))
    assert text.push(first) is None
    assert text.push(second) == TextDelta("Sx", (first, second), (0, 1))


def reference(text: str, stop: tuple[str, ...]) -> tuple[str, str | None]:
    """The definition: the first character that completes a stop string, and the longest one that it completes."""
    for end in range(1, len(text) + 1):
        matches = [each for each in stop if text[:end].endswith(each)]
        if matches:
            longest = max(matches, key=len)
            return text[: end - len(longest)], longest
    return text, None


ALPHABET = st.text("ab", max_size=30)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=3).map(tuple)


@given(ALPHABET, STOPS, st.lists(st.integers(0, 30), max_size=12))
def test_the_output_does_not_depend_on_how_the_text_is_split(text: str, stop: tuple[str, ...], cuts: list[int]) -> None:
    """[1, 2, 24]"""
    edges = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    pieces = [text[a:b] for a, b in pairwise(edges)]
    whole, ids, stopped = run(pieces, stop)
    assert (whole, stopped) == reference(text, stop)
    begins = dict(zip(range(len(pieces)), edges, strict=False))
    assert ids == [i for i in begins if stopped is None or begins[i] < len(whole)]


@given(ALPHABET, STOPS)
def test_nothing_is_held_that_cannot_begin_a_stop_string(text: str, stop: tuple[str, ...]) -> None:
    state, deltas = stream(list(text), stop)
    if state.stopped is None:
        released = "".join(delta.text for delta in deltas if delta)
        held = text[len(released) :]
        longest = max((n for each in stop for n in range(len(each)) if text.endswith(each[:n])), default=0)
        assert len(held) == longest


def test_a_stop_string_is_found_in_whole_tokens_and_in_single_bytes() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata())
    text = " Grüße 👍 and STÖP 👎 more"
    for ids in (tokenizer.encode(text[1:], add_special=False), [3 + byte for byte in text.encode()]):
        reader = TextStream(tokenizer.detokenizer(), ("STÖP 👎",))
        deltas = [*(reader.push(Token("r", i)) for i in ids), reader.finish()]
        assert "".join(delta.text for delta in deltas if delta) == " Grüße 👍 and "
        assert reader.stopped == "STÖP 👎"
