"""Which tokens end a turn, and which show in its text."""

from typing import Any

from isotherm.daemon.tokenizer import Tokenizer


def tiny(*control: str) -> dict[str, Any]:
    """GGUF metadata of a byte-level vocabulary: a begin token, a letter, and these control tokens."""
    values = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": ["<|endoftext|>", "a", *control],
        "merges": [],
        "token_type": [3, 1, *[3] * len(control)],
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    return {f"tokenizer.ggml.{name}": value for name, value in values.items()}


def test_the_end_of_a_message_is_no_end_where_turns_have_their_own() -> None:
    assert Tokenizer.from_gguf(tiny("<|call|>", "<|return|>", "<|end|>", "<|observation|>")).eos_ids == {0, 2, 3, 5}
    assert Tokenizer.from_gguf(tiny("<|x|>", "<|return|>", "<|end|>", "<|observation|>")).eos_ids == {0, 3, 4, 5}


def test_control_tokens_show_where_they_are_asked_for() -> None:
    tokenizer = Tokenizer.from_gguf(tiny())
    shown, hidden = tokenizer.detokenizer([0]), tokenizer.detokenizer()
    assert [shown.push(0), shown.push(1), hidden.push(0), hidden.push(1)] == ["<|endoftext|>", "a", "", "a"]
