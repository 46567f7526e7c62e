"""Fields of chat and plain completions that say how tokens are drawn and where an answer ends."""

from typing import Any

import pytest
from isotherm.daemon.messages import Submit
from support.api_service import chat, chunks, complete, make_service
from support.engine_runs import make_engine, running
from support.fake_runner import FakeRunner
from support.scripted_engine import BOS, EOS, HANG, ScriptedEngine, Step, says


def submitted(**fields: Any) -> Submit:
    """What the engine is asked for by a plain completion, which a chat completion with the same fields agrees with."""
    engine = ScriptedEngine(lambda submit: [])
    service = make_service(engine)
    for answer in (complete(service, **fields), chat(service, **fields)):
        assert answer.status_code == 200, answer.text
    plain, talk = engine.submitted
    for name in ("allowed_token_ids", "bad_words", "logit_bias", "seed", "repetition_penalty", "skip_special_tokens"):
        assert getattr(plain.sampling, name) == getattr(talk.sampling, name)
    assert plain.priority == talk.priority
    return plain


def test_allowed_tokens_reach_the_sampler() -> None:
    assert submitted(allowed_token_ids=[3, 5, 3]).sampling.allowed_token_ids == {3, 5}


@pytest.mark.parametrize("token", [64, 2**31, 2**63, 2**64])
def test_ids_outside_the_vocabulary_are_refused(token: int) -> None:
    """[7] And the engine goes on."""
    fields = {"prompt": [token], "logit_bias": {str(token): 1}, "allowed_token_ids": [token], "stop_token_ids": [token]}
    with running(make_engine(FakeRunner())) as client:
        service = make_service(client)
        for name, value in fields.items():
            error = complete(service, **{"prompt": [1], "max_tokens": 1, name: value}).json()["error"]
            assert error["param"].startswith(name)
        assert complete(service, [1], max_tokens=1).status_code == 200


def test_bad_words_are_banned_with_and_without_a_space() -> None:
    assert submitted(bad_words=["ab"]).sampling.bad_words == ((97, 98), (32, 97, 98))


@pytest.mark.parametrize("given", [{"97": 2, "98": False}, [[97, 2], [98, False]], [["a", 2], ["b", False]]])
def test_biases_come_in_three_forms(given: Any) -> None:
    sampling = submitted(logit_bias=given).sampling
    assert (sampling.logit_bias, sampling.bad_words) == (((97, 2.0),), ((98,),))


def test_minus_one_means_no_limit() -> None:
    submit = submitted(max_tokens=-1, top_k=-1, seed=-1)
    assert submit.sampling.max_tokens == 1000 - len(submit.prompt)
    assert (submit.sampling.top_k, submit.sampling.seed) == (0, None)


def test_other_names_of_fields() -> None:
    sampling = submitted(repeat_penalty=1.5, n_predict=7, sampling_seed=9, no_stop_trim=True).sampling
    assert (sampling.repetition_penalty, sampling.max_tokens) == (1.5, 7)
    assert (sampling.seed, sampling.include_stop_str_in_output) == (9, True)


def test_priority_reaches_the_engine() -> None:
    assert submitted(priority=-3).priority == -3


@pytest.mark.parametrize(("keep", "prompt"), [(2, (98, 99)), (9, (BOS, 97, 98, 99)), (-1, (BOS, 97, 98, 99))])
def test_the_end_of_a_prompt_is_kept(keep: int, prompt: tuple[int, ...]) -> None:
    service = make_service("!")
    answer = complete(service, "abc", truncate_prompt_tokens=keep, echo=True)
    assert service.client.submitted[0].prompt == prompt
    assert answer.json()["choices"][0]["text"] == ("bc!" if keep == 2 else "abc!")


def test_what_does_not_fit_is_cut_to_what_does() -> None:
    service = make_service("!")
    complete(service, "a" * 2000, truncate_prompt_tokens=-1, max_tokens=10)
    assert len(service.client.submitted[0].prompt) == 990


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("show", "text"), [(True, "abEND"), (False, "ab")])
def test_a_stop_string_may_be_shown(show: bool, text: str, stream: bool) -> None:
    steps: list[Step] = [*says("abENDcd"), HANG]
    response = complete(make_service(steps), stop="END", include_stop_str_in_output=show, stream=stream)
    choices = [each["choices"][0] for each in (chunks(response) if stream else [response.json()])]
    assert "".join(choice["text"] for choice in choices) == text
    assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("stop", "END")


@pytest.mark.parametrize(("show", "text"), [(True, "ab<eos>"), (False, "ab")])
def test_a_stop_token_may_be_shown(show: bool, text: str) -> None:
    fields = {"stop_token_ids": [EOS], "include_stop_str_in_output": show, "skip_special_tokens": False}
    choice = complete(make_service("ab"), **fields).json()["choices"][0]
    assert (choice["text"], choice["stop_reason"]) == (text, EOS)


def test_the_model_s_own_end_is_no_stop_reason() -> None:
    assert complete(make_service("ab")).json()["choices"][0]["stop_reason"] is None


@pytest.mark.parametrize(("skip", "text"), [(True, "ab"), (False, "a<bos>b")])
def test_control_tokens_may_be_shown(skip: bool, text: str) -> None:
    steps: list[Step] = [97, BOS, 98]
    assert complete(make_service(steps), skip_special_tokens=skip).json()["choices"][0]["text"] == text
    answer = chat(make_service(steps), skip_special_tokens=skip).json()
    assert answer["choices"][0]["message"]["content"] == text


def test_bans_hold_in_the_engine() -> None:
    """Of an answer's first two tokens the second is banned after the first, and the first alone."""
    with running(make_engine(FakeRunner())) as client:
        service = make_service(client)
        prompt = {"prompt": [5, 9], "temperature": 0, "max_tokens": 2, "return_token_ids": True}
        first, second = complete(service, **prompt).json()["choices"][0]["token_ids"]
        pair = {"bad_words": [bytes([first, second]).decode()], "allowed_token_ids": [first, second, 40]}
        assert complete(service, **prompt, **pair).json()["choices"][0]["token_ids"][0] == first
        assert complete(service, **prompt, **pair).json()["choices"][0]["token_ids"][1] != second
        alone = complete(service, **prompt, logit_bias=[[first, False]]).json()["choices"][0]
        assert alone["token_ids"][0] != first


def test_chat_is_for_at_least_one_token() -> None:
    response = chat(make_service(), max_tokens=0)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "max_tokens")
