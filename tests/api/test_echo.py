"""Echo, log-probabilities of prompts and token ids. Numbers in brackets: a known bug of other servers."""

from operator import itemgetter
from typing import Any

import pytest
from support.api_service import chat, chunks, complete, make_service
from support.engine_runs import make_engine, running
from support.fake_runner import FakeRunner
from support.scripted_engine import BOS, ByteTokenizer, says


def test_echo_with_logprobs_begins_with_null() -> None:
    """[28]"""
    choice = complete(make_service("!"), [97, 98], echo=True, logprobs=2, max_tokens=1).json()["choices"][0]
    assert choice["text"] == "ab!"
    assert choice["logprobs"] == {
        "tokens": ["a", "b", "!"],
        "token_logprobs": [None, -1.0, 0.0],
        "top_logprobs": [None, {"b": -1.0, "c": -9999.0}, {"!": 0.0, '"': -9999.0}],
        "text_offset": [0, 1, 2],
    }


def test_the_begin_token_has_no_room_in_the_text() -> None:
    """[27]"""
    choice = complete(make_service("!"), "ab", echo=True, logprobs=0, max_tokens=1).json()["choices"][0]
    assert choice["text"] == "ab!"
    assert choice["logprobs"]["tokens"] == ["<bos>", "a", "b", "!"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 1, 2]


class SpacingTokenizer(ByteTokenizer):
    """Puts a space before each text, as SentencePiece does."""

    def encode(self, text: str, *, add_special: bool, parse_special: bool = True) -> list[int]:
        return super().encode(" " + text, add_special=add_special)


def test_a_space_that_the_tokenizer_adds_is_no_part_of_the_text() -> None:
    """[27]"""
    service = make_service("!", tokenizer=SpacingTokenizer())
    choice = complete(service, "ab", echo=True, logprobs=0, max_tokens=1).json()["choices"][0]
    assert choice["text"] == "ab!"
    assert choice["logprobs"]["tokens"] == ["<bos>", " ", "a", "b", "!"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 0, 1, 2]


def test_a_stream_with_echo_adds_up_to_the_whole_answer() -> None:
    """[24, 27] Offsets run over the chunks of all, in characters."""
    fields: dict[str, Any] = {"echo": True, "logprobs": 1, "n": 2, "max_tokens": 20}
    service = make_service(says("aéb", 0.001))
    whole = complete(service, ["xéy", "z"], **fields).json()["choices"]
    data = chunks(complete(service, ["xéy", "z"], stream=True, **fields))
    for index, expected in enumerate(whole):
        parts = [part for each in data for part in each["choices"] if part["index"] == index]
        assert "".join(part["text"] for part in parts) == expected["text"]
        told = [part["logprobs"] for part in parts if part["logprobs"]]
        for name, values in expected["logprobs"].items():
            assert [value for logprobs in told for value in logprobs[name]] == values


def test_echo_without_tokens_is_the_prompt() -> None:
    choice = complete(make_service("never"), "ab", echo=True, logprobs=0, max_tokens=0).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "length")
    assert len(choice["logprobs"]["tokens"]) == 3


def test_the_end_token_counts_among_the_logprobs() -> None:
    """[24] As in usage: what clients cut off at the end is then never a token of the prompt."""
    body = complete(make_service(""), "ab", echo=True, logprobs=0, max_tokens=1).json()
    assert body["choices"][0]["logprobs"]["tokens"] == ["<bos>", "a", "b", "<eos>"]
    assert body["choices"][0]["logprobs"]["text_offset"] == [0, 0, 1, 2]
    assert body["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_logprobs_are_objects_by_token_id(stream: bool) -> None:
    response = complete(make_service("!"), [97, 98], prompt_logprobs=1, stream=stream)
    choice = (chunks(response)[0] if stream else response.json())["choices"][0]
    assert choice["logprobs"] is None
    assert choice["prompt_logprobs"] == [None, {"98": {"logprob": -1.0, "rank": 1, "decoded_token": "b"}}]


def test_each_list_of_alternatives_has_its_own_length() -> None:
    fields = {"echo": True, "logprobs": 0, "prompt_logprobs": 2}
    choice = complete(make_service("!"), [97, 98], **fields).json()["choices"][0]
    assert choice["logprobs"]["top_logprobs"][1] == {"b": -1.0}
    assert list(choice["prompt_logprobs"][1]) == ["98", "99"]


def test_tokens_may_be_named_by_their_ids() -> None:
    fields = {"echo": True, "logprobs": 0, "max_tokens": 1, "return_tokens_as_token_ids": True}
    logprobs = complete(make_service("!"), [97], **fields).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["token_id:97", "token_id:33"]
    assert logprobs["top_logprobs"] == [None, {"token_id:33": 0.0}]


def test_token_ids_are_told() -> None:
    choice = complete(make_service("!"), "a", return_token_ids=True).json()["choices"][0]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([BOS, 97], [33, 257])


def test_token_ids_of_a_stream_add_up() -> None:
    data = chunks(complete(make_service(says("ab", 0.001)), "a", return_token_ids=True, stream=True))
    assert data[0]["choices"][0]["prompt_token_ids"] == [BOS, 97]
    assert [token for each in data for token in each["choices"][0]["token_ids"]] == [97, 98, 257]


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_an_evaluation_harness_scores_continuations(max_tokens: int) -> None:
    """[25, 29] The sum over a continuation is what drawing its tokens one by one would have given."""
    prompts, lengths = [[5, 9, 2, 30], [7, 7, 1], [5, 9, 2, 8, 8]], [3, 1, 2]
    with running(make_engine(FakeRunner())) as client:
        service = make_service(client)
        fields = {"logprobs": 1, "echo": True, "max_tokens": max_tokens, "temperature": 0, "seed": 1}
        body = complete(service, prompts, **fields).json()
        choices = sorted(body["choices"], key=itemgetter("index"))
        for prompt, length, choice in zip(prompts, lengths, choices, strict=True):
            end = -1 if max_tokens else None
            scores = choice["logprobs"]["token_logprobs"][length:end]
            expected = []
            for place in range(length, len(prompt)):
                only = {"allowed_token_ids": [prompt[place]], "max_tokens": 1, "logprobs": 0}
                drawn = complete(service, prompt[:place], **only).json()["choices"][0]
                expected += drawn["logprobs"]["token_logprobs"]
            assert scores == expected
            assert len(choice["logprobs"]["top_logprobs"]) == len(prompt) + max_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_chat_tells_of_its_tokens_too(stream: bool) -> None:
    """Beside the choices what is of the prompt, and in all chunks together what is of an answer."""
    fields = {"return_token_ids": True, "prompt_logprobs": 1, "n": 2, "stream": stream}
    response = chat(make_service(says("ab", 0.001)), "x", **fields)
    data = chunks(response) if stream else [response.json()]
    prompt = list(b"user: x\n")
    assert data[0]["prompt_token_ids"] == prompt
    assert data[0]["prompt_logprobs"][:2] == [None, {"115": {"logprob": -1.0, "rank": 1, "decoded_token": "s"}}]
    assert len(data[0]["prompt_logprobs"]) == len(prompt)
    for index in range(2):
        parts = [part for each in data for part in each["choices"] if part["index"] == index]
        assert [token for part in parts for token in part.get("token_ids", [])] == [97, 98, 257]


def test_chat_tells_nothing_of_tokens_unasked() -> None:
    answer = chat(make_service("ab"), "x").json()
    assert "prompt_token_ids" not in answer
    assert "token_ids" not in answer["choices"][0]
