import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isotherm.daemon.errors import InvalidRequestError
from isotherm.daemon.tokenizer import Tokenizer
from isotherm.experts.errors import CheckpointError, UnsupportedModelError
from support.vocab import (
    LlamaCpp,
    sentencepiece_metadata,
    small_byte_level_metadata,
    smollm2_metadata,
    smollm2_path,
    write_tiny_model,
)

IM_START, IM_END, END_OF_TEXT = 1, 2, 0

ODD_TEXTS = [
    "",
    "Hello world",
    " leading and trailing ",
    "  two  spaces   three    four",
    "a\n b\n\n  c\r\n\r\nd\r",
    "\t\ttabs\t",
    "12345 1 22 333 4444 3.14159 1,000,000",
    "I'm you're he'll she'd we've it's CAN'T DON'T I'M 'tis",
    "def f(x):\n    return x**2 + 1  # comment\n",
    "for(int i=0;i<10;++i){a[i]+=b[i];}",
    '{"a": [1, 2.5e-3, null]}',
    "日本語のテキスト、中文字符。한국어",
    "Привет, мир! ёж αβγ ΔΕΖ",
    "مرحبا بالعالم नमस्ते दुनिया ไทย ภาษา",
    "👍👩‍👩‍👧‍👦🇩🇪 emoji 𝒳𝓎 𝟘𝟙 \U00010348",
    "e\u0301 \u0300\u0301 ﬁ ½ ² Ⅷ ①",
    "\u00a0nbsp\u2003em\u3000ideographic\u200b\u200d\ufeff",
    "\x00\x01\x7f control",
    "<|im_start|>user\nhi<|im_end|>\n",
    "<|endoftext|><|endoftext|> <|im_end| im_end|>",
    "<s></s><unk>",
    "http://example.com/a?b=c&d=e#f",
    "CamelCaseWordsHTTPServer snake_case kebab-case",
    "!!!??...---___*** $100 €50 “quotes” ‘single’ — dash…",
    "x" * 300,
    " " * 100,
    "\n" * 50,
    "1" * 40,
]
FRAGMENTS = [
    *"abcXYZ  \n\t\r0123456789.,'\"!?-_<>|{}[]()$#@äöüñ中文本語한글приветمر👍🇩½²\u00a0\u200b",
    "'s",
    "<|im_end|>",
    "the",
]


def odd_texts(count: int) -> list[str]:
    """The list above and random mixtures of everything."""
    source = random.Random(0)
    return ODD_TEXTS + ["".join(source.choices(FRAGMENTS, k=source.randint(1, 40))) for _ in range(count)]


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return Tokenizer.from_gguf(smollm2_metadata())


@pytest.fixture(scope="module")
def sentencepiece() -> Tokenizer:
    return Tokenizer.from_gguf(sentencepiece_metadata())


@pytest.fixture(scope="module")
def llama_cpp() -> Iterator[LlamaCpp]:
    yield LlamaCpp(smollm2_path())


def tiny(**values: Any) -> dict[str, Any]:
    """A byte-level vocabulary of a few tokens."""
    keys = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": ["<|endoftext|>", "a", "b", "ab", "Ġ", "Ġab", "Ã", "©"],
        "merges": ["a b", "Ġ ab"],
        "token_type": [3, 1, 1, 1, 1, 1, 1, 1],
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    keys |= values
    return {f"tokenizer.ggml.{name}": value for name, value in keys.items() if value is not None}


# --- Against llama.cpp


@pytest.mark.parametrize("parse_special", [True, False])
def test_smollm2_encodes_as_llama_cpp_does(smollm2: Tokenizer, llama_cpp: LlamaCpp, parse_special: bool) -> None:
    for text in odd_texts(200):
        ours = smollm2.encode(text, add_special=False, parse_special=parse_special)
        assert ours == llama_cpp.encode(text, parse_special=parse_special), repr(text)


@pytest.mark.parametrize("pre", ["default", "gpt-2", "llama-bpe", "dbrx", "qwen2", "qwen35", "tekken", "gpt-4o"])
def test_each_pre_tokenizer_cuts_as_llama_cpp_does(tmp_path: Path, pre: str) -> None:
    metadata = small_byte_level_metadata(pre)
    write_tiny_model(tmp_path / "model.gguf", metadata)
    reference, ours = LlamaCpp(tmp_path / "model.gguf"), Tokenizer.from_gguf(metadata)
    # Where a combining mark follows no letter, llama.cpp departs from the pattern that these two were trained with.
    skip = "\u0301" if pre in {"tekken", "gpt-4o"} else "\0\0"
    for text in odd_texts(60):
        if skip not in text:
            assert ours.encode(text, add_special=True) == reference.encode(text, add_special=True), repr(text)


@pytest.mark.parametrize("space_prefix", [True, False])
def test_sentencepiece_encodes_as_llama_cpp_does(tmp_path: Path, space_prefix: bool) -> None:
    metadata = {**sentencepiece_metadata(), "tokenizer.ggml.add_space_prefix": space_prefix}
    write_tiny_model(tmp_path / "model.gguf", metadata)
    reference, ours = LlamaCpp(tmp_path / "model.gguf"), Tokenizer.from_gguf(metadata)
    for text in odd_texts(100):
        assert ours.encode(text, add_special=True) == reference.encode(text, add_special=True), repr(text)


# --- Encoding


@given(text=st.text())
def test_byte_level_text_survives_the_round_trip(smollm2: Tokenizer, text: str) -> None:
    ids = smollm2.encode(text, add_special=False, parse_special=False)
    spellable = {smollm2.token_bytes(i) for i in range(300)}  # this vocabulary has no token for some control characters
    kept = bytes(byte for byte in text.encode() if bytes([byte]) in spellable)
    assert smollm2.decode(ids) == kept.decode(errors="replace")


@given(text=st.text())
def test_sentencepiece_text_survives_the_round_trip(sentencepiece: Tokenizer, text: str) -> None:
    ids = sentencepiece.encode(text, add_special=False, parse_special=False)
    assert sentencepiece.decode(ids) == (" " + text if text else "").replace("▁", " ")


def test_digits_of_smollm_are_single_tokens(smollm2: Tokenizer) -> None:
    assert len(smollm2.encode("12345", add_special=False)) == 5


def test_control_tokens_are_parsed_only_on_request(smollm2: Tokenizer) -> None:
    assert smollm2.encode("<|im_end|>", add_special=False) == [IM_END]
    plain = smollm2.encode("<|im_end|>", add_special=False, parse_special=False)
    assert smollm2.special_ids.isdisjoint(plain) and smollm2.decode(plain) == "<|im_end|>"


def test_user_text_cannot_merge_into_a_control_token() -> None:
    tokenizer = Tokenizer.from_gguf(tiny(token_type=[3, 1, 1, 3, 1, 1, 1, 1]))
    assert tokenizer.encode("ab", add_special=False, parse_special=False) == [1, 2]


def test_user_defined_tokens_are_found_in_any_text_and_shown() -> None:
    tokenizer = Tokenizer.from_gguf(tiny(token_type=[3, 1, 1, 4, 1, 1, 1, 1], merges=[]))
    ids = tokenizer.encode("aab", add_special=False, parse_special=False)
    assert ids == [1, 3] and tokenizer.decode(ids) == "aab"


def test_the_begin_token_is_added_where_the_model_wants_it() -> None:
    assert Tokenizer.from_gguf(tiny(add_bos_token=True)).encode("a", add_special=True) == [0, 1]
    assert Tokenizer.from_gguf(tiny(add_bos_token=False)).encode("a", add_special=True) == [1]
    assert Tokenizer.from_gguf(tiny(add_bos_token=True)).encode("a", add_special=False) == [1]


def test_the_end_token_is_added_where_the_model_wants_it() -> None:
    assert Tokenizer.from_gguf(tiny(add_eos_token=True)).encode("a", add_special=True) == [1, 0]


def test_half_a_surrogate_pair_is_refused(smollm2: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="surrogate"):
        smollm2.encode("a\ud83d", add_special=False)


# --- Decoding


def test_control_tokens_and_unknown_ids_do_not_show(smollm2: Tokenizer) -> None:
    ids = smollm2.encode("hi", add_special=False)
    assert smollm2.decode([IM_START, *ids, IM_END, -1, 10**9]) == "hi"


def test_token_text_and_bytes() -> None:
    tokenizer = Tokenizer.from_gguf(tiny())
    assert tokenizer.token_text(5) == " ab" and tokenizer.token_bytes(5) == b" ab"
    assert tokenizer.token_text(6) == "�" and tokenizer.token_bytes(6) == b"\xc3"
    assert tokenizer.token_text(0) == "<|endoftext|>" and tokenizer.token_bytes(99) == b""


def test_a_sentencepiece_byte_token_is_one_byte(sentencepiece: Tokenizer) -> None:
    assert sentencepiece.token_bytes(3 + 0xE2) == b"\xe2"


@given(data=st.data())
def test_pushed_text_equals_decoded_text(smollm2: Tokenizer, sentencepiece: Tokenizer, data: st.DataObject) -> None:
    """[5, 6, 7]"""
    for tokenizer in (smollm2, sentencepiece):
        anything = st.integers(-2, tokenizer.vocab_size + 2)
        some_bytes = st.integers(3, 258)  # byte tokens of one, single letters of the other
        ids = data.draw(st.lists(anything | some_bytes, max_size=40))
        stream = tokenizer.detokenizer()
        assert "".join(map(stream.push, ids)) + stream.finish() == tokenizer.decode(ids)


@given(text=st.text(min_size=1))
def test_no_push_gives_half_a_character(sentencepiece: Tokenizer, text: str) -> None:
    stream = sentencepiece.detokenizer()
    pieces = [stream.push(3 + byte) for byte in text.encode()]
    assert "".join(pieces) == text and stream.finish() == ""
    assert all(piece == "" or piece in text for piece in pieces)


def test_a_character_that_is_never_completed_shows_once_at_the_end(sentencepiece: Tokenizer) -> None:
    stream = sentencepiece.detokenizer()
    assert [stream.push(3 + byte) for byte in "👍".encode()[:3]] == ["", "", ""]
    assert stream.finish() == "�"


# --- What the metadata says


def test_end_tokens_are_the_configured_ones_and_those_known_by_name(smollm2: Tokenizer) -> None:
    assert smollm2.eos_ids == {IM_END, END_OF_TEXT}
    assert Tokenizer.from_gguf(tiny(eot_token_id=5)).eos_ids == {0, 5}


def test_names_for_templates(smollm2: Tokenizer) -> None:
    assert (smollm2.bos_token, smollm2.eos_token, smollm2.vocab_size) == ("<|im_start|>", "<|im_end|>", 49152)
    assert smollm2.chat_template is not None and "SmolLM" in smollm2.chat_template


def test_a_model_without_a_begin_token_or_template() -> None:
    tokenizer = Tokenizer.from_gguf(tiny(bos_token_id=None))
    assert (tokenizer.bos_id, tokenizer.bos_token, tokenizer.chat_template) == (None, "", None)


def test_token_names_that_are_not_unicode_keep_their_bytes() -> None:
    tokens = ["<|endoftext|>", "a", "b", "ab", "Ġ", "Ġab", "Ã", "\udcff"]
    assert Tokenizer.from_gguf(tiny(tokens=tokens)).token_bytes(7) == b"\xff"


def test_a_missing_pre_tokenizer_is_the_default_one_and_told() -> None:
    assert Tokenizer.from_gguf(tiny()).fallbacks == ()
    (fallback,) = Tokenizer.from_gguf(tiny(pre=None)).fallbacks
    assert "tokenizer.ggml.pre is missing" in fallback


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model": "bert"}, "'bert'"),
        ({"model": None}, "None"),
        ({"pre": "martian"}, "'martian'"),
    ],
)
def test_what_is_not_implemented_is_named(values: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedModelError, match=words):
        Tokenizer.from_gguf(tiny(**values))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"tokens": None}, "tokens is missing"),
        ({"tokens": [1, 2]}, "tokens is missing or is not"),
        ({"tokens": ["a", "a"], "token_type": [1, 1]}, "twice"),
        ({"merges": None}, "merges is missing"),
        ({"merges": ["a x"]}, "do not fit"),
        ({"merges": ["a"]}, "do not fit"),
        ({"token_type": [1]}, "1 entries for 8"),
        ({"eos_token_id": 8}, "eos_token_id is 8"),
        ({"bos_token_id": -1}, "bos_token_id is -1"),
        ({"bos_token_id": None, "add_bos_token": True}, "add_bos_token is true"),
        ({"model": "llama"}, "scores is missing"),
        ({"model": "llama", "scores": [0.0] * 8, "token_type": [3, 6, 1, 1, 1, 1, 1, 1]}, "instead of <0xNN>"),
    ],
)
def test_broken_metadata_is_named(values: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        Tokenizer.from_gguf(tiny(**values))


# --- Folders


def folder(path: Path, tokenizer: Tokenizer, **files: Any) -> Path:
    """A checkpoint folder with this tokenizer and other JSON files by stem."""
    tokenizer._encoder.save(str(path / "tokenizer.json"))
    for stem, content in files.items():
        (path / f"{stem}.json").write_text(json.dumps(content))
    return path


def tiny_folder(path: Path, **files: Any) -> None:
    """A byte-level folder with the tiny vocabulary."""
    with_decoder(folder(path, Tokenizer.from_gguf(tiny()), **files), BYTE_LEVEL)


def with_decoder(path: Path, decoder: dict[str, Any]) -> None:
    content = json.loads((path / "tokenizer.json").read_text())
    (path / "tokenizer.json").write_text(json.dumps({**content, "decoder": decoder}))


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
SPM_DECODER = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}


def test_a_byte_level_folder_equals_the_gguf(tmp_path: Path, smollm2: Tokenizer) -> None:
    names = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}}
    with_decoder(folder(tmp_path, smollm2, tokenizer_config=names), BYTE_LEVEL)
    loaded = Tokenizer.from_folder(tmp_path)
    for text in ODD_TEXTS:
        assert loaded.encode(text, add_special=True) == smollm2.encode(text, add_special=True)
    ids = range(smollm2.vocab_size)
    assert [loaded.token_bytes(i) for i in ids] == [smollm2.token_bytes(i) for i in ids]
    assert (loaded.bos_id, loaded.eos_id, loaded.eos_ids) == (IM_START, IM_END, {IM_END, END_OF_TEXT})


def test_a_sentencepiece_folder_equals_the_gguf(tmp_path: Path, sentencepiece: Tokenizer) -> None:
    with_decoder(folder(tmp_path, sentencepiece), SPM_DECODER)
    loaded = Tokenizer.from_folder(tmp_path)
    ids = range(sentencepiece.vocab_size)
    assert [loaded.token_bytes(i) for i in ids] == [sentencepiece.token_bytes(i) for i in ids]
    assert loaded.encode("hi there", add_special=True) == sentencepiece.encode("hi there", add_special=True)


@pytest.mark.parametrize(("value", "expected"), [(5, {0, 5}), ([5, 6], {0, 5, 6}), (None, {0})])
def test_end_tokens_of_the_generation_config_count(tmp_path: Path, value: Any, expected: set[int]) -> None:
    tiny_folder(tmp_path, generation_config={"eos_token_id": value})
    assert Tokenizer.from_folder(tmp_path).eos_ids == expected


@pytest.mark.parametrize(
    "template", ["T", [{"name": "tool_use", "template": "U"}, {"name": "default", "template": "T"}]]
)
def test_the_chat_template_of_the_config(tmp_path: Path, template: Any) -> None:
    tiny_folder(tmp_path, tokenizer_config={"chat_template": template})
    assert Tokenizer.from_folder(tmp_path).chat_template == "T"


def test_the_chat_template_file_wins(tmp_path: Path) -> None:
    tiny_folder(tmp_path, tokenizer_config={"chat_template": "T"})
    (tmp_path / "chat_template.jinja").write_text("J")
    assert Tokenizer.from_folder(tmp_path).chat_template == "J"


def test_truncation_and_padding_are_turned_off(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_gguf(tiny())
    tokenizer._encoder.enable_truncation(2)
    tokenizer._encoder.enable_padding(length=8)
    with_decoder(folder(tmp_path, tokenizer), BYTE_LEVEL)
    assert Tokenizer.from_folder(tmp_path).encode("aaa", add_special=False) == [1, 1, 1]


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json; copy it"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.model").touch()
    with pytest.raises(CheckpointError, match="fast tokenizer"):
        Tokenizer.from_folder(tmp_path)


def test_another_kind_of_decoder_is_not_implemented(tmp_path: Path) -> None:
    folder(tmp_path, Tokenizer.from_gguf(tiny()))
    with pytest.raises(UnsupportedModelError, match="decodes by nothing"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("tokenizer.json", "{", "cannot be read"),
        ("tokenizer_config.json", "{", "not valid JSON"),
        ("tokenizer_config.json", "[]", "no JSON object"),
        ("tokenizer_config.json", '{"eos_token": "<gone>"}', "not in the vocabulary"),
        ("tokenizer_config.json", '{"chat_template": 5}', "not a string"),
        ("generation_config.json", '{"eos_token_id": "x"}', "neither"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, file: str, content: str, words: str) -> None:
    tiny_folder(tmp_path)
    (tmp_path / file).write_text(content)
    with pytest.raises(CheckpointError, match=words) as caught:
        Tokenizer.from_folder(tmp_path)
    assert file in str(caught.value)
