"""TokenTable: a model's vocabulary as the matcher of grammars needs it."""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
from llguidance import LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

Allowed = NDArray[np.bool_]
"""By token id: whether the token may come next."""

_END = b"<end of structure>"
_NUMBER_CHARACTERS = b"+-.0123456789Ee"


class Vocabulary(Protocol):
    """What is needed of `daemon.tokenizer.Tokenizer`."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def special_ids(self) -> Collection[int]: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def encode(self, text: str, *, add_special: bool) -> list[int]: ...


class TokenTable:
    """Tokens by their bytes. Safe to share between threads.

    The matcher is shown one token more than there are, `end_id`: the mark by which it says that a text may end here.
    Which real tokens mean that is known to each request.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.size = self.end_id = vocabulary.vocab_size
        self.tokens: Sequence[bytes] = [vocabulary.token_bytes(i) for i in range(self.size)]
        self._special = frozenset(vocabulary.special_ids)
        self.matcher_tokenizer = LLTokenizer(TokenizerWrapper(_Shown(self, sorted(self._special))))

    @cached_property
    def number_starts(self) -> Allowed:
        """Tokens that begin as a number may go on."""
        firsts = frozenset(_NUMBER_CHARACTERS)
        return np.array([bool(token) and token[0] in firsts for token in self.tokens], dtype=np.bool_)

    @cached_property
    def _sorted(self) -> list[tuple[bytes, int]]:
        return sorted((token, i) for i, token in enumerate(self.tokens) if i not in self._special)

    def starting_with(self, prefix: bytes) -> Iterator[int]:
        """The text tokens that begin with these bytes."""
        place = bisect_left(self._sorted, (prefix, -1))
        while place < len(self._sorted) and self._sorted[place][0].startswith(prefix):
            yield self._sorted[place][1]
            place += 1

    def containing(self, part: bytes) -> list[int]:
        """The text tokens that hold these bytes."""
        return [i for i, token in enumerate(self.tokens) if part in token and i not in self._special]

    def tokenise(self, text: str) -> list[int]:
        """Tokens whose bytes together are exactly the text's, as the model itself would most likely write them.

        A tokenizer may put a space before a text, which the second try keeps apart; empty where nothing fits.
        """
        wanted = text.encode()
        for lead in ("", "\n"):
            ids = self._vocabulary.encode(lead + text, add_special=False)
            place, size = 0, 0
            while place < len(ids) and size < len(lead):
                size += len(self.tokens[ids[place]].lstrip(b" "))
                place += 1
            rest = ids[place:]
            if self._special.isdisjoint(rest) and b"".join(self.tokens[i] for i in rest) == wanted:
                return rest
        return []

    def bytewise(self, data: bytes) -> list[int]:
        """Tokens that make up these bytes, the longest first; empty where there are none."""
        ids: list[int] = []
        place = 0
        while place < len(data):
            for end in range(len(data), place, -1):
                token_id = self._exact(data[place:end])
                if token_id is not None:
                    ids.append(token_id)
                    place = end
                    break
            else:
                return []
        return ids

    def _exact(self, token: bytes) -> int | None:
        place = bisect_left(self._sorted, (token, -1))
        found = place < len(self._sorted) and self._sorted[place][0] == token
        return self._sorted[place][1] if found else None


class _Shown:
    """What the library reads: it calls this to tokenise."""

    bos_token_id = None

    def __init__(self, table: TokenTable, special: list[int]) -> None:
        self._table = table
        self.eos_token_id = table.end_id
        self.tokens = [*table.tokens, _END]
        self.special_token_ids = [*special, table.end_id]

    def __call__(self, text: str | bytes) -> list[int]:
        data = text if isinstance(text, bytes) else text.encode()
        try:
            return self._table.tokenise(data.decode()) or self._table.bytewise(data)
        except UnicodeDecodeError:
            return self._table.bytewise(data)
