"""Text to token ids and back."""

import codecs
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import tokenizers

from .errors import InvalidRequestError
from .folder_vocabulary import read_folder
from .gguf_vocabulary import read_gguf
from .vocabulary import Vocabulary


class Tokenizer:
    """Encodes prompts and decodes tokens of one model. Safe to share between threads.

    Decoded text is what the tokens add after other text: SentencePiece's leading space is kept, and control tokens
    do not show.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._encoder = vocabulary.encoder
        self._token_bytes = vocabulary.token_bytes
        # The text of each id: control tokens add nothing to it.
        self._text_bytes = list(vocabulary.token_bytes)
        for token_id in vocabulary.special_ids:
            self._text_bytes[token_id] = b""
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.eos_ids = vocabulary.eos_ids
        self.special_ids = vocabulary.special_ids
        self.chat_template = vocabulary.chat_template
        self.fallbacks = vocabulary.fallbacks

    @classmethod
    def from_folder(cls, path: str | Path) -> Self:
        """Read a Hugging Face folder. Raises ModelError; see `folder_vocabulary`."""
        return cls(read_folder(Path(path)))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Self:
        """Read GGUF key-values, arrays as lists. Raises ModelError; see `gguf_vocabulary`."""
        return cls(read_gguf(metadata))

    @cached_property
    def _plain_encoder(self) -> tokenizers.Tokenizer:
        """Takes the names of control tokens for text. A copy of the whole vocabulary, so only made if asked for."""
        encoder = tokenizers.Tokenizer.from_buffer(self._encoder.to_str().encode())
        encoder.encode_special_tokens = True
        return encoder

    @property
    def vocab_size(self) -> int:
        """Number of ids that have a token; the model's own vocabulary may be padded beyond it."""
        return len(self._token_bytes)

    @property
    def bos_token(self) -> str:
        """Name of the begin token, for templates; empty if there is none."""
        return "" if self.bos_id is None else self.token_text(self.bos_id)

    @property
    def eos_token(self) -> str:
        """Name of the end token, for templates; empty if there is none."""
        return "" if self.eos_id is None else self.token_text(self.eos_id)

    def encode(self, text: str, *, add_special: bool, parse_special: bool = True) -> list[int]:
        """Token ids of a text.

        add_special: put the model's begin (end) token around it, where it has one; a rendered chat template already
        holds it. parse_special: names of control tokens in the text become these tokens; without it they are text.
        Raises InvalidRequestError for text that is not valid Unicode.
        """
        encoder = self._encoder if parse_special else self._plain_encoder
        try:
            # Unlike `encode`, this frees the interpreter's lock while it works.
            return encoder.encode_batch_fast([text], add_special_tokens=add_special)[0].ids
        except TypeError as error:  # what the library raises for a lone surrogate
            raise InvalidRequestError("the text holds half of a surrogate pair; send valid Unicode") from error

    def decode(self, ids: Iterable[int]) -> str:
        """The text of tokens. Bytes that are not UTF-8 become U+FFFD; ids outside the vocabulary are skipped."""
        size = self.vocab_size
        return b"".join(self._text_bytes[i] for i in ids if 0 <= i < size).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token, its name if it is a control token; empty outside the vocabulary."""
        return self._token_bytes[token_id] if 0 <= token_id < self.vocab_size else b""

    def token_text(self, token_id: int) -> str:
        """`token_bytes` as text; parts of characters become U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def detokenizer(self, shown: Iterable[int] = ()) -> "Detokenizer":
        """A fresh detokenizer for one stream of tokens. shown: control tokens whose names are to show in the text."""
        return Detokenizer(self._text_bytes, {token_id: self._token_bytes[token_id] for token_id in shown})


class Detokenizer:
    """Turns a stream of tokens into text, whole characters at a time, in constant time per token.

    All pushes and the finish joined equal `Tokenizer.decode` of the same ids, but for those ids that `instead` holds.
    """

    def __init__(self, text_bytes: Sequence[bytes], instead: Mapping[int, bytes] | None = None) -> None:
        self._text_bytes = text_bytes
        self._instead = instead or {}
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that this token completes; empty for control tokens and ids outside the vocabulary."""
        if not 0 <= token_id < len(self._text_bytes):
            return ""
        data = self._instead.get(token_id)
        return self._decoder.decode(self._text_bytes[token_id] if data is None else data)

    def finish(self) -> str:
        """U+FFFD for a character that was never completed, else empty."""
        return self._decoder.decode(b"", final=True)
