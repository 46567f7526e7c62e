"""How long a number of JSON may become, alone and after other text."""

import pytest
from isotherm.daemon.number_length import MAX_NUMBER, NumberLength
from isotherm.daemon.structure import Structure
from isotherm.daemon.structures import Structures
from support.scripted_engine import ByteTokenizer


@pytest.mark.parametrize(
    ("text", "reached"),
    [
        ("1" * MAX_NUMBER, True),
        ("1" * (MAX_NUMBER - 1), False),
        ('"' + "1" * MAX_NUMBER, False),
        ('{"a": ' + "1" * MAX_NUMBER, True),
        ('a quote " in a thought\n{"a": ' + "1" * MAX_NUMBER, True),
        ('a quote " in a thought\n{"a": "' + "1" * MAX_NUMBER, False),
    ],
)
def test_numbers_are_told_from_digits_in_texts(text: str, reached: bool) -> None:
    length = NumberLength()
    length.feed(text.encode())
    assert length.reached is reached


@pytest.mark.parametrize(
    ("source", "kept"), [('start: "<" %json {"type": "integer"}', True), ("start: /[0-9]+/", False)]
)
def test_numbers_of_json_in_a_grammar_are_kept_short(source: str, kept: bool) -> None:
    """[38]"""
    assert Structures(ByteTokenizer()).compile(Structure("lark", source)).is_json is kept
