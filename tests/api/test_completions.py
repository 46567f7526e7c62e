"""POST /v1/completions. Numbers in brackets: a known bug of other servers that is tested for."""

from typing import Any

import pytest
from support.api_service import MODEL, by_prompt, chunks, complete, make_service
from support.scripted_engine import BOS, HANG, ByteTokenizer, ScriptedEngine, Step, says


def test_answer_has_the_shape_of_text_completion() -> None:
    body = complete(make_service("Hi"), model=MODEL).json()
    assert body["id"].startswith("cmpl-")
    assert (body["object"], body["model"]) == ("text_completion", MODEL)
    assert body["choices"] == [
        {"index": 0, "text": "Hi", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    ]
    assert body["usage"]["total_tokens"] == len("hello") + 1 + 3


def test_a_text_prompt_gets_the_begin_token() -> None:
    service = make_service()
    complete(service, "ab")
    assert service.client.submitted[0].prompt == (BOS, 97, 98)


def test_token_ids_are_taken_as_they_are() -> None:
    service = make_service()
    complete(service, [1, 2, 3])
    assert service.client.submitted[0].prompt == (1, 2, 3)


def test_default_max_tokens_is_16() -> None:
    service = make_service()
    complete(service)
    assert service.client.submitted[0].sampling.max_tokens == 16


def test_default_max_tokens_is_cut_to_the_context() -> None:
    """[68]"""
    service = make_service()
    assert complete(service, "x" * 994).status_code == 200
    assert service.client.submitted[0].sampling.max_tokens == 5


def test_explicit_max_tokens_beyond_the_context_is_refused() -> None:
    """[68]"""
    error = complete(make_service(), "x" * 994, max_tokens=6).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "max_tokens")


def test_choices_lie_prompt_by_prompt() -> None:
    """[30, 31] index = i * n + k, seed + k within each prompt."""
    service = make_service(ScriptedEngine(by_prompt({"one": "1", "two": "2"})))
    body = complete(service, ["one", "two"], n=2, seed=3).json()
    assert [(each["index"], each["text"]) for each in body["choices"]] == [(0, "1"), (1, "1"), (2, "2"), (3, "2")]
    assert [submit.sampling.seed for submit in service.client.submitted] == [3, 4, 3, 4]
    assert body["usage"]["prompt_tokens"] == 2 * 4
    assert body["usage"]["completion_tokens"] == 4 * 2


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [("ab", ["ab"]), (["ab", "c"], ["ab", "c"]), ([97, 98], ["ab"]), ([[97], [98]], ["a", "b"])],
)
def test_all_kinds_of_prompts_are_echoed(prompt: Any, texts: list[str]) -> None:
    body = complete(make_service("!"), prompt, echo=True).json()
    assert [each["text"] for each in body["choices"]] == [text + "!" for text in texts]


def test_echo_is_streamed_first() -> None:
    data = chunks(complete(make_service(says("!", 0.001)), "ab", echo=True, stream=True))
    assert [each["choices"][0]["text"] for each in data] == ["ab", "!", ""]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [258]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ["a"] * 65, "n": 2}, "n"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"length_penalty": 2.0}, "length_penalty"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"mirostat": 2}, "mirostat"),
        ({"repeat_last_n": 64}, "repeat_last_n"),
        ({"samplers": ["top_k"]}, "samplers"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"bad_words": [" "]}, "bad_words"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"5": True}}, "logit_bias"),
        ({"logit_bias": [[5, 101]]}, "logit_bias"),
        ({"logit_bias": [[-5, 1]]}, "logit_bias"),
        ({"logprobs": 21}, "logprobs"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
    ],
)
def test_bad_field_is_named(fields: dict[str, Any], param: str) -> None:
    """[7, 28, 29] What cannot be honoured is refused, not ignored."""
    response = complete(make_service(), **{"prompt": "x", **fields})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_logprobs_are_parallel_lists() -> None:
    """[23, 25]"""
    logprobs = complete(make_service("Hi"), logprobs=2, max_tokens=2).json()["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": ["H", "i"],
        "token_logprobs": [0.0, -1.0],
        "top_logprobs": [{"H": 0.0, "I": -9999.0}, {"i": -1.0, "j": -9999.0}],
        "text_offset": [0, 1],
    }


def test_the_chosen_token_is_always_among_the_top() -> None:
    logprobs = complete(make_service("H"), logprobs=0, max_tokens=1).json()["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] == [{"H": 0.0}]


def test_text_offset_runs_over_the_chunks_of_a_stream() -> None:
    """[27] In characters of the returned text."""
    data = chunks(complete(make_service(says("aéb", 0.001)), stream=True, logprobs=0, max_tokens=4))
    offsets = [each["choices"][0]["logprobs"]["text_offset"] for each in data if each["choices"][0]["logprobs"]]
    assert offsets == [[0], [1, 1], [2]]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("steps", "stop", "offsets"),
    [
        (says("aéb", 0.001), None, [0, 1, 1, 2]),
        ([*says("a"), BOS, 0.001, *says("b")], None, [0, 1, 1]),  # a control token adds nothing
        (says("abSTx", 0.001), "STOP", [0, 1, 2, 3, 4]),  # held back, then released
    ],
)
def test_text_offsets_are_where_tokens_begin(
    steps: list[Step], stop: str | None, offsets: list[int], stream: bool
) -> None:
    """[27]"""
    response = complete(make_service(steps), logprobs=0, stop=stop, stream=stream, max_tokens=len(offsets))
    choices = [each["choices"][0] for each in (chunks(response) if stream else [response.json()])]
    found = [choice["logprobs"]["text_offset"] for choice in choices if choice["logprobs"]]
    assert [offset for each in found for offset in each] == offsets


def test_tokens_of_a_stop_string_are_not_reported() -> None:
    """[24]"""
    choice = complete(make_service([*says("abSTOP"), HANG]), stop="STOP", logprobs=0).json()["choices"][0]
    assert (choice["text"], choice["logprobs"]["tokens"]) == ("ab", ["a", "b"])


def test_usage_of_a_stream_sums_all_prompts() -> None:
    """[21]"""
    fields = {"stream": True, "stream_options": {"include_usage": True}}
    data = chunks(complete(make_service("Hi"), ["one", "three"], **fields))
    assert data[-1]["usage"]["prompt_tokens"] == 4 + 6
    assert data[-1]["usage"]["completion_tokens"] == 2 * 3


def test_echo_of_ids_shows_no_control_tokens() -> None:
    text = complete(make_service("!"), [BOS, 97], echo=True).json()["choices"][0]["text"]
    assert text == ByteTokenizer().decode([97]) + "!"


@pytest.mark.parametrize(("prompt", "param"), [(["a"] * 129, "n"), ([[1]] * 129, "n"), ([1] * 1000, "prompt")])
def test_prompts_that_are_too_many_or_too_long_are_refused_before_work_goes_into_them(prompt: Any, param: str) -> None:
    response = complete(make_service(tokenizer=None), prompt)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
