"""Prompt files of people: what is read, and what is said of those that cannot be used."""

import io
import json
import sys
from pathlib import Path

import pytest
from isotherm.daemon import prompts as prompts_module
from isotherm.daemon.chat_template import ChatTemplate
from isotherm.daemon.prompts import Prompt, PromptError, encode_prompts, read_prompts, sample_prompts
from isotherm.daemon.tokenizer import Tokenizer
from support.tiny import CHAT_TEMPLATE, write_tokenizer

CHAT = [{"role": "user", "content": "hi"}]


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def lines(*values: object) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    write_tokenizer(tmp_path)
    return Tokenizer.from_folder(tmp_path)


def test_a_jsonl_file_has_an_object_a_line(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", lines({"messages": CHAT}) + "\n" + lines({"prompt": "a\u2028b", "model": "m"}))
    assert read_prompts(path) == [Prompt(f"{path}, line 1", CHAT), Prompt(f"{path}, line 3", "a\u2028b")]


def test_a_text_file_has_a_prompt_a_line(tmp_path: Path) -> None:
    path = write(tmp_path / "p.txt", "\ufeffone\r\n\r\n  two\n")
    assert [(prompt.where, prompt.content) for prompt in read_prompts(path)] == [
        (f"{path}, line 1", "one"),
        (f"{path}, line 3", "two"),
    ]


def test_a_folder_has_a_prompt_a_file_and_jsonl_files(tmp_path: Path) -> None:
    write(tmp_path / "b.md", "two\nlines\n")
    write(tmp_path / "a.jsonl", lines({"prompt": "first"}, {"messages": CHAT}))
    write(tmp_path / ".hidden", "no")
    write(tmp_path / "c.txt", " \n")
    (tmp_path / "folder").mkdir()
    assert [prompt.content for prompt in read_prompts(str(tmp_path))] == ["first", CHAT, "two\nlines"]


@pytest.mark.parametrize(("text", "content"), [("one\ntwo\n", ["one", "two"]), (lines({"messages": CHAT}), [CHAT])])
def test_standard_input_has_lines_of_either_sort(
    text: str, content: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert [prompt.content for prompt in read_prompts("-")] == content


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"prompt": "a"}\n{"prompt"', "line 2: this is no JSON"),
        (b"[" * 100_000, "line 1: this is no JSON"),
        (b'"text"', "line 1: it must be an object with either messages or prompt"),
        (b'{"text": "a"}', "line 1: it must be an object with either messages or prompt"),
        (b'{"prompt": "a", "messages": []}', "line 1: it must be an object with either messages or prompt"),
        (b'{"prompt": 3}', "line 1: prompt must be a text that is not empty"),
        (b'{"prompt": " "}', "line 1: prompt must be a text that is not empty"),
        (b'\n\n{"messages": []}', "line 3: messages must be a list of objects"),
        (b'{"messages": ["a"]}', "line 1: messages must be a list of objects"),
        (b'{"prompt": "a"}\n{"prompt": "\xff"}', "line 2: this is no UTF-8 text"),
        (b'{"prompt": "a"}\n\n\0', "line 3: this is no text, it holds a NUL"),
        (b"\n", "holds no prompt; write one a line"),
    ],
)
def test_a_fault_is_named_with_its_file_and_line(content: bytes, words: str, tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", content)
    with pytest.raises(PromptError) as caught:
        read_prompts(path)
    assert path in str(caught.value) and words in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=r"nowhere cannot be read \(No such file or directory\); name a \.jsonl"):
        read_prompts(str(tmp_path / "nowhere"))


def test_an_empty_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=r"holds no prompt; put \.jsonl files there"):
        read_prompts(str(tmp_path))


def test_files_and_prompts_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts_module, "MAX_PROMPTS", 2)
    with pytest.raises(PromptError, match="holds 3 prompts; at most 2"):
        read_prompts(write(tmp_path / "p.txt", "a\nb\nc\n"))
    monkeypatch.setattr(prompts_module, "MAX_BYTES", 1 << 20)
    with pytest.raises(PromptError, match=r"large.txt is larger than 1 MiB"):
        read_prompts(write(tmp_path / "large.txt", "a" * ((1 << 20) + 1)))


def test_conversations_go_through_the_template_and_texts_do_not(tokenizer: Tokenizer) -> None:
    template = ChatTemplate(CHAT_TEMPLATE)
    text, chat = encode_prompts([Prompt("a", "hi"), Prompt("b", CHAT)], tokenizer, template, 100, 10)
    assert tokenizer.decode(text) == "hi"
    assert list(chat) == tokenizer.encode(template.render(CHAT), add_special=False)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("ab" * 40, "p, line 1: the prompt has 80 tokens, and it must leave room in the context: at most 50 tokens"),
        ("a" * 4000, "p, line 1: the prompt has 4000 characters, and it must leave room"),
        ("\ud800", "p, line 1: the text holds half of a surrogate pair"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "p, line 1: messages[0].content[0] has type"),
        ([{"role": "nobody", "content": ""}], "p, line 1: messages[0].role is 'nobody'"),
    ],
)
def test_prompts_that_do_not_suit_the_model_are_named(content: object, words: str, tokenizer: Tokenizer) -> None:
    prompt = Prompt("p, line 1", content)  # type: ignore[arg-type]
    with pytest.raises(PromptError) as caught:
        encode_prompts([prompt], tokenizer, ChatTemplate(CHAT_TEMPLATE), 60, 10)
    assert words in str(caught.value)


def test_a_conversation_needs_a_model_with_a_template(tokenizer: Tokenizer) -> None:
    tokenizer.chat_template = None
    with pytest.raises(PromptError, match="p: the model has no chat template; write "):
        encode_prompts([Prompt("p", CHAT)], tokenizer, ChatTemplate(None), 60, 10)


def test_more_tokens_than_the_context_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(PromptError, match="--tokens 60 leaves no room for a prompt in a context of 60"):
        encode_prompts([Prompt("p", "hi")], tokenizer, ChatTemplate(None), 60, 60)


def test_the_bundled_sample_is_mixed_and_short() -> None:
    sample = sample_prompts(chat=True)
    assert 20 <= len(sample) <= 30
    kinds = [isinstance(prompt.content, str) for prompt in sample]
    assert min(kinds.count(True), kinds.count(False)) >= 8
    assert max(len(str(prompt.content)) for prompt in sample) < 1000


def test_the_bundled_sample_is_plain_text_for_a_model_without_a_template(tokenizer: Tokenizer) -> None:
    tokenizer.chat_template = None
    encoded = encode_prompts(sample_prompts(chat=False), tokenizer, ChatTemplate(None), 2000, 10)
    assert len(encoded) == len(sample_prompts(chat=True))
