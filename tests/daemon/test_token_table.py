"""Vocabularies as the matcher needs them: a text becomes tokens whose bytes are exactly the text's."""

import json
from functools import cache

import numpy as np
import pytest
from isotherm.daemon.guide import Guide, GuideWorkers
from isotherm.daemon.structure import Structure
from isotherm.daemon.structures import Structures
from isotherm.daemon.token_table import TokenTable
from isotherm.daemon.tokenizer import Tokenizer
from support.vocab import sentencepiece_metadata, small_byte_level_metadata

KINDS = ("byte-level", "sentencepiece")
TEXTS = ['{"name": "', "name", " name", "\n\n  x", "é漢字🙂", "", "a\u0301", "</s>", "<s>[INST]"]


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    metadata = small_byte_level_metadata("gpt-2") if kind == "byte-level" else sentencepiece_metadata()
    return Tokenizer.from_gguf(metadata)


@cache
def table_of(kind: str) -> TokenTable:
    return TokenTable(tokenizer_of(kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", TEXTS)
def test_a_text_becomes_tokens_of_its_own_bytes(kind: str, text: str) -> None:
    table = table_of(kind)
    ids = table.tokenise(text) or table.bytewise(text.encode())
    assert b"".join(table.tokens[i] for i in ids) == text.encode()
    assert not tokenizer_of(kind).special_ids.intersection(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_becomes_the_tokens_that_the_model_knows(kind: str) -> None:
    """Not single letters, though SentencePiece puts a space before a text of its own accord."""
    table = table_of(kind)
    assert len(table.tokenise("the people")) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_characters_become_tokens_too(kind: str) -> None:
    table = table_of(kind)
    data = "漢".encode()[:2] + b"a"
    assert b"".join(table.tokens[i] for i in table.bytewise(data)) == data


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_found_by_how_they_begin(kind: str) -> None:
    table = table_of(kind)
    special = tokenizer_of(kind).special_ids
    expected = {i for i, token in enumerate(table.tokens) if token.startswith(b"the") and i not in special}
    assert set(table.starting_with(b"the")) == expected and len(expected) > 3
    assert set(table.starting_with(b"no token begins so")) == set()


@pytest.mark.parametrize("kind", KINDS)
def test_what_must_come_is_forced_in_the_models_own_tokens(kind: str) -> None:
    tokenizer, workers = tokenizer_of(kind), GuideWorkers(1)
    schema = {
        "type": "object",
        "properties": {"people": {"const": "the people of this world"}},
        "required": ["people"],
        "additionalProperties": False,
    }
    constraint = Structures(tokenizer).compile(Structure("json_schema", json.dumps(schema)))
    guide = Guide(constraint, tokenizer.eos_ids, tokenizer.eos_ids, workers, force=True)
    ids: list[int] = []
    while True:
        allowed = guide.allowed(tokenizer.vocab_size)
        assert allowed is not None
        ids.append(int(np.flatnonzero(allowed)[0]))
        follow = guide.accept(ids[-1])
        ids += follow.tokens
        if follow.complete or ids[-1] in tokenizer.eos_ids or len(ids) > 60:
            break
    workers.close()
    assert json.loads(tokenizer.decode(ids))["people"] == "the people of this world"
    assert len(ids) < 20
