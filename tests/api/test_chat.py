"""POST /v1/chat/completions without streaming. Numbers in brackets: a known bug of other servers that is tested for."""

import math

import pytest
from isotherm.api.fields import FieldNotes
from isotherm.api.logprobs import chat_logprobs
from isotherm.api.openai.chat import prepare_chat
from isotherm.daemon.chat_template import ChatTemplate
from isotherm.daemon.errors import OverloadedError
from isotherm.daemon.events import EventLog
from isotherm.daemon.messages import Token, TokenLogprobs
from support.api_service import MODEL, by_prompt, call, chat, make_service
from support.scripted_engine import EOS, HANG, ByteTokenizer, ScriptedEngine, says


def test_answer_has_the_shape_of_chat_completion() -> None:
    response = chat(make_service("Hi"), model=MODEL)
    body = response.json()
    assert response.status_code == 200
    assert body["id"].startswith("chatcmpl-")
    assert (body["object"], body["model"]) == ("chat.completion", MODEL)
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hi", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]


def test_usage_counts_the_end_token_and_the_cached_prompt() -> None:
    service = make_service(ScriptedEngine(lambda submit: says("Hi"), cached_tokens=5))
    prompt = len("user: hello\n")
    assert chat(service).json()["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 3,
        "total_tokens": prompt + 3,
        "prompt_tokens_details": {"cached_tokens": 5},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def test_template_gets_no_second_begin_token() -> None:
    service = make_service()
    chat(service)
    assert ByteTokenizer().decode(service.client.submitted[0].prompt) == "user: hello\n"
    assert service.client.submitted[0].prompt[0] == ord("u")


def test_default_max_tokens_is_the_rest_of_the_context() -> None:
    service = make_service()
    chat(service)
    submit = service.client.submitted[0]
    assert submit.sampling.max_tokens == service.max_context - len(submit.prompt)


def test_max_completion_tokens_wins_over_max_tokens() -> None:
    body = chat(make_service("Hello"), max_tokens=4, max_completion_tokens=2).json()
    assert body["choices"][0]["message"]["content"] == "He"
    assert body["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_explicit_max_tokens_beyond_the_context_is_refused(field: str) -> None:
    """[68] Clients look for the code."""
    response = chat(make_service(), **{field: 1000})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", field)
    assert "1000" in error["message"]


def test_prompt_beyond_the_context_is_refused() -> None:
    """[68]"""
    response = chat(make_service(), "x" * 1000)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")


def test_hopeless_prompt_is_refused_before_it_is_encoded() -> None:
    """[53]"""

    class NeverEncodes(ByteTokenizer):
        def encode(self, text: str, **_: object) -> list[int]:
            raise AssertionError("encoded")

    response = chat(make_service(tokenizer=NeverEncodes()), "x" * 100_000)
    assert response.json()["error"]["code"] == "context_length_exceeded"


def test_all_sampling_fields_reach_the_engine() -> None:
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "seed": 11,
        "min_tokens": 1,
        "ignore_eos": True,
    }
    service = make_service()
    response = chat(service, stop=["x", "yz"], stop_token_ids=[3], logit_bias={"65": -100, "66": 2.5}, **fields)
    sampling = service.client.submitted[0].sampling
    assert response.status_code == 200
    assert {name: getattr(sampling, name) for name in fields} == fields
    assert (sampling.stop, sampling.stop_token_ids) == (("x", "yz"), frozenset({3}))
    assert sampling.logit_bias == ((65, -100.0), (66, 2.5))
    assert service.client.submitted[0].eos_token_ids == {EOS}


def test_nulls_mean_defaults() -> None:
    names = ["temperature", "top_p", "n", "stop", "seed", "stream", "stream_options", "logprobs", "tools", "max_tokens"]
    assert chat(make_service(), **dict.fromkeys(names)).status_code == 200


def test_children_of_one_seed_draw_differently() -> None:
    """[31]"""
    service = make_service()
    chat(service, n=3, seed=5)
    assert [submit.sampling.seed for submit in service.client.submitted] == [5, 6, 7]


def test_choices_are_kept_apart() -> None:
    """[30]"""
    answers = iter(["one", "two", "three"])
    service = make_service(ScriptedEngine(lambda submit: says(next(answers), 0.001)))
    body = chat(service, n=3).json()
    assert [(each["index"], each["message"]["content"]) for each in body["choices"]] == [
        (0, "one"),
        (1, "two"),
        (2, "three"),
    ]
    assert body["usage"]["prompt_tokens"] == len("user: hello\n")
    assert body["usage"]["completion_tokens"] == len("onetwothree") + 3


def test_stop_string_ends_text_request_and_count() -> None:
    """[2] It spans tokens; the tokens up to its end are counted, whatever the engine computed meanwhile."""
    service = make_service([*says("say STOP and more"), HANG])
    body = chat(service, stop="STOP").json()
    assert body["choices"][0]["message"]["content"] == "say "
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == len("say STOP")
    assert service.client.aborted == [(service.client.submitted[0].request_id, "stop")]


def test_held_back_text_is_released_at_the_end() -> None:
    """[4]"""
    assert chat(make_service("say ST"), stop="STOP").json()["choices"][0]["message"]["content"] == "say ST"


def test_a_finished_request_is_not_aborted() -> None:
    service = make_service()
    chat(service)
    assert service.client.aborted == []


def test_logprobs_without_top_give_the_chosen_token() -> None:
    """[26]"""
    content = chat(make_service("Hi"), logprobs=True).json()["choices"][0]["logprobs"]["content"]
    assert content == [
        {"token": "H", "logprob": 0.0, "bytes": [72], "top_logprobs": []},
        {"token": "i", "logprob": -1.0, "bytes": [105], "top_logprobs": []},
    ]


def test_top_logprobs_belong_to_their_position() -> None:
    """[23, 25] And minus infinity is a number that JSON has."""
    content = chat(make_service("Hi"), logprobs=True, top_logprobs=2).json()["choices"][0]["logprobs"]["content"]
    assert [[each["token"] for each in entry["top_logprobs"]] for entry in content] == [["H", "I"], ["i", "j"]]
    assert content[1]["top_logprobs"][1]["logprob"] == -9999.0


def test_logprobs_of_part_of_a_character_show_its_bytes() -> None:
    """[5]"""
    choice = chat(make_service("é"), logprobs=True).json()["choices"][0]
    assert choice["message"]["content"] == "é"
    assert [entry["bytes"] for entry in choice["logprobs"]["content"]] == [[0xC3], [0xA9]]


def test_unfinished_character_is_replaced_once() -> None:
    """[5]"""
    assert chat(make_service([0x41, 0xF0, 0x9F])).json()["choices"][0]["message"]["content"] == "A\ufffd"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": 5, "max_tokens": 2}, "min_tokens"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 65}, "stop"),
        ({"stop": ["x" * 2049] * 2}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"logit_bias": {"258": 1}}, "logit_bias"),
        ({"logit_bias": {"word": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": "many"}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"tools": []}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": [{}]}, "functions"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"chat_template": "{{ evil }}"}, "chat_template"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages",
        ),
    ],
)
def test_bad_field_is_named(fields: dict[str, object], param: str) -> None:
    """[29, 36, 69] What cannot be honoured is refused, not ignored."""
    response = chat(make_service(), **fields)
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"},
        {"response_format": {"type": "text"}},
        {"modalities": ["text"]},
        {"functions": []},
        {"user": "someone", "store": False, "metadata": {"a": "b"}, "parallel_tool_calls": True},
        {"top_k": -1},
    ],
)
def test_fields_that_ask_for_nothing_pass(fields: dict[str, object]) -> None:
    assert chat(make_service(), **fields).status_code == 200


def test_unknown_field_is_ignored_and_an_event_once() -> None:
    service = make_service()
    notes = FieldNotes(service.events)
    for _ in range(2):
        prepare_chat(service, notes, b'{"messages":[{"role":"user","content":"x"}],"wings":2}', "")
    assert [(event.name, event.detail) for event in service.events.recent()] == [
        ("unknown_field", "clients send 'wings', which is ignored")
    ]


def test_unknown_fields_do_not_crowd_other_events_out() -> None:
    events = EventLog()
    FieldNotes(events).check({f"field{number}": 1 for number in range(1000)}, {}, ())
    assert events.counts()["unknown_field"] < 100


def test_template_error_is_the_clients() -> None:
    """[34]"""
    refusing = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    response = chat(make_service(chat_template=refusing))
    assert response.status_code == 400
    assert "roles must alternate" in response.json()["error"]["message"]


def test_model_without_template_points_to_completions() -> None:
    response = chat(make_service(chat_template=ChatTemplate(None)))
    assert response.status_code == 400
    assert "/v1/completions" in response.json()["error"]["message"]


def test_null_content_and_empty_tool_calls_pass() -> None:
    """[32, 33]"""
    service = make_service()
    message = {"role": "assistant", "content": None, "tool_calls": []}
    assert chat(service, messages=[{"role": "user", "content": "x"}, message]).status_code == 200
    assert ByteTokenizer().decode(service.client.submitted[0].prompt) == "user: x\nassistant: \n"


def test_children_are_all_or_none() -> None:
    """An overload on the second child leaves none of the first behind."""
    engine = ScriptedEngine(lambda submit: [HANG], refuse=OverloadedError("full", 3.0), capacity=1)
    assert chat(make_service(engine), n=2).status_code == 429
    assert engine.aborted == [(engine.submitted[0].request_id, "abort")]


def test_request_ids_are_the_servers_own() -> None:
    """Two requests with the same x-request-id do not meet in the engine."""
    service = make_service()
    for _ in range(2):
        call(
            service,
            "POST",
            "/v1/chat/completions",
            json={"messages": [{"role": "user", "content": "x"}]},
            headers={"x-request-id": "mine"},
        )
    assert len({submit.request_id for submit in service.client.submitted}) == 2


def test_cache_salt_reaches_the_engine() -> None:
    """[46]"""
    service = make_service()
    chat(service, cache_salt="pepper")
    assert service.client.submitted[0].cache_salt == "pepper"


def test_infinite_logprob_of_the_chosen_token_is_a_number() -> None:
    token = Token("r", 65, TokenLogprobs(-math.inf))
    assert chat_logprobs([token], ByteTokenizer())["content"][0]["logprob"] == -9999.0


def test_script_sees_the_prompt() -> None:
    service = make_service(ScriptedEngine(by_prompt({"user: hello\n": "a", "user: bye\n": "b"})))
    assert chat(service, "bye").json()["choices"][0]["message"]["content"] == "b"


def test_a_template_argument_may_have_any_name() -> None:
    assert chat(make_service(), chat_template_kwargs={"self": 1, "kwargs": 2}).status_code == 200


def test_seeds_of_choices_wrap_around() -> None:
    service = make_service()
    chat(service, n=3, seed=2**64 - 1)
    assert [submit.sampling.seed for submit in service.client.submitted] == [2**64 - 1, 0, 1]


def test_an_error_repeats_only_the_beginning_of_what_was_sent() -> None:
    for fields in ({"model": "x" * 10**6}, {"logit_bias": {"x" * 10**6: "a"}}):
        assert len(chat(make_service(), **fields).content) < 5000
