"""Vocabularies that the library reads but that contradict themselves."""

import json
from pathlib import Path

import pytest
from isotherm.daemon.tokenizer import Tokenizer
from isotherm.experts.errors import ModelError
from support.tiny import write_tokenizer


def test_two_tokens_of_one_id_are_a_broken_tokenizer(tmp_path: Path) -> None:
    """The library would read both names as the one token, and write it as one of them."""
    write_tokenizer(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    left, right = content["model"]["merges"][0]
    content["model"]["vocab"][left] = content["model"]["vocab"][right]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ModelError, match=r"contradicts itself: .* both are token \d+"):
        Tokenizer.from_folder(tmp_path)
