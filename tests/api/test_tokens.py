"""POST /tokenize, /detokenize and /apply-template."""

from typing import Any

import pytest
from support.api_service import call, make_service
from support.scripted_engine import BOS, EOS


def post(path: str, **fields: Any) -> Any:
    response = call(make_service(), "POST", path, json=fields)
    assert response.status_code == 200, response.text
    return response.json()


def test_a_prompt_gets_the_begin_token() -> None:
    answer = post("/tokenize", prompt="ab")
    assert answer == {"tokens": [BOS, 97, 98], "token_strs": None, "count": 3, "max_model_len": 1000}


def test_a_prompt_without_special_tokens_and_with_names() -> None:
    answer = post("/tokenize", prompt="ab", add_special_tokens=False, return_token_strs=True)
    assert (answer["tokens"], answer["token_strs"]) == ([97, 98], ["a", "b"])


@pytest.mark.parametrize(("fields", "tokens"), [({}, [97]), ({"add_special": True}, [BOS, 97])])
def test_a_content_gets_it_if_asked(fields: dict[str, bool], tokens: list[int]) -> None:
    assert post("/tokenize", content="a", **fields)["tokens"] == tokens


def test_pieces_that_are_no_text_are_bytes() -> None:
    pieces = post("/tokenize", content="aé", with_pieces=True)["tokens"]
    assert pieces == [{"id": 97, "piece": "a"}, {"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}]


def test_an_empty_text_has_no_tokens() -> None:
    assert post("/tokenize", content="")["tokens"] == []


def test_a_conversation_is_rendered_first() -> None:
    messages = [{"role": "user", "content": "hi"}]
    prompt = post("/apply-template", messages=messages)["prompt"]
    assert prompt == "user: hi\n"
    assert post("/tokenize", messages=messages)["tokens"] == list(prompt.encode())


def test_tokens_become_text_by_both_names() -> None:
    assert post("/detokenize", tokens=[97, EOS]) == {"prompt": "a<eos>", "content": "a<eos>"}


def test_tokens_make_the_text_they_came_from() -> None:
    text = "日本 é\n<x>"
    assert post("/detokenize", tokens=post("/tokenize", content=text)["tokens"])["content"] == text


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "content": "b"}, "prompt"),
        ("/tokenize", {"content": "a" * 64_001}, "content"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [258]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/apply-template", {}, "messages"),
    ],
)
def test_bad_field_is_named(path: str, fields: dict[str, Any], param: str) -> None:
    response = call(make_service(), "POST", path, json=fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/apply-template"])
def test_another_model_is_not_found(path: str) -> None:
    fields = {"content": "a", "tokens": []} if path != "/apply-template" else {"messages": [{"role": "user"}]}
    assert call(make_service(), "POST", path, json={"model": "x", **fields}).status_code == 404
