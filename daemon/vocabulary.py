"""Vocabulary: what a tokenizer needs, whichever file it came from."""

from collections.abc import Container, Sequence
from dataclasses import dataclass

import tokenizers

SPACE_MARK = "▁"  # SentencePiece writes a space as this character

# Models end a turn with one of these whether or not their metadata lists it among the end tokens.
END_TOKENS = frozenset(
    {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
        "<|user|>",
        "<|observation|>",
        "<|call|>",
        "<|return|>",
        "<EOT>",
        "</s>",
        "<｜end▁of▁sentence｜>",
    }
)
_HARMONY_ENDS = frozenset({"<|call|>", "<|return|>"})


def end_tokens(names: Container[str]) -> frozenset[str]:
    """Those of END_TOKENS that end a turn in a vocabulary of these names. Where calls and turns have ends of their own,
    <|end|> closes but a message of the turn."""
    parted = all(name in names for name in _HARMONY_ENDS)
    return END_TOKENS - {"<|end|>"} if parted else END_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """An encoder and the bytes behind each id.

    token_bytes[i]: what token i adds to the text, its own name for a special token. special_ids: control tokens, which
    never show in the text. eos_ids: every token that ends a generation; eos_id is the one that templates name.
    fallbacks: what was assumed because the file does not say, a sentence each.
    """

    encoder: tokenizers.Tokenizer
    token_bytes: Sequence[bytes]
    special_ids: frozenset[int]
    bos_id: int | None
    eos_id: int | None
    eos_ids: frozenset[int]
    chat_template: str | None
    fallbacks: tuple[str, ...] = ()


def byte_alphabet() -> dict[str, int]:
    """The printable character that byte-level BPE writes for each byte: printable Latin-1 is itself, the rest shift."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + i): byte for i, byte in enumerate(shifted)})
    return alphabet


def byte_level_bytes(tokens: Sequence[str], literal_ids: frozenset[int]) -> list[bytes]:
    """Token bytes of a byte-level vocabulary. Tokens in `literal_ids` or outside the alphabet stand for themselves."""
    alphabet = byte_alphabet()
    letters = frozenset(alphabet)
    to_latin = str.maketrans({char: chr(byte) for char, byte in alphabet.items()})
    return [
        token.translate(to_latin).encode("latin-1")
        if letters.issuperset(token) and token_id not in literal_ids
        else token.encode(errors="surrogateescape")
        for token_id, token in enumerate(tokens)
    ]


def sentencepiece_bytes(tokens: Sequence[str], literal_ids: frozenset[int], byte_ids: frozenset[int]) -> list[bytes]:
    """Token bytes of a SentencePiece vocabulary; `byte_ids` are the <0xNN> tokens that stand for one byte."""
    table = []
    for token_id, token in enumerate(tokens):
        if token_id in byte_ids:
            table.append(bytes([int(token[3:5], 16)]))
        elif token_id in literal_ids:
            table.append(token.encode(errors="surrogateescape"))
        else:
            table.append(token.replace(SPACE_MARK, " ").encode(errors="surrogateescape"))
    return table


def is_byte_token(token: str) -> bool:
    """Whether a token's name has the form <0xNN>."""
    return len(token) == 6 and token.startswith("<0x") and token.endswith(">") and _is_hex(token[3:5])


def _is_hex(digits: str) -> bool:
    return all(digit in "0123456789ABCDEFabcdef" for digit in digits)
