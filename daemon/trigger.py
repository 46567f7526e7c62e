"""Trigger: the text after which an answer must obey its structure, looked for in the bytes of tokens."""

from collections.abc import Callable
from dataclasses import dataclass

from .border_lengths import border_lengths
from .token_table import TokenTable


@dataclass(frozen=True, slots=True)
class Place:
    """matched: bytes of the trigger that the answer now ends with. rest: None, or once the trigger is complete what of
    the last token came after it."""

    matched: int = 0
    rest: bytes | None = None


class Trigger:
    """Knuth-Morris-Pratt over bytes. `refused` holds, by what is matched, the tokens that must not come: those that
    would complete the trigger and go on with what the structure does not begin with."""

    def __init__(self, text: str, table: TokenTable, may_begin: Callable[[bytes], bool]) -> None:
        self._text = text.encode()
        self._fallback = border_lengths(self._text)
        self._table = table
        self.refused = self._refused(may_begin)

    def advance(self, place: Place, token_id: int) -> Place:
        """Where the next token leads. Control tokens count by their names."""
        token = self._table.tokens[token_id] if token_id < self._table.size else b""
        matched = place.matched
        for position, byte in enumerate(token, 1):
            while matched and self._text[matched] != byte:
                matched = self._fallback[matched - 1]
            matched += self._text[matched] == byte
            if matched == len(self._text):
                return Place(matched, token[position:])
        return Place(matched)

    def _refused(self, may_begin: Callable[[bytes], bool]) -> dict[int, list[int]]:
        """Only tokens that begin with an end of the trigger, or hold all of it, can complete it and go on."""
        ends = (self._text[start:] for start in range(len(self._text)))
        candidates = {i for end in ends for i in self._table.starting_with(end)} | set(
            self._table.containing(self._text)
        )
        verdicts: dict[bytes, bool] = {b"": True}
        refused: dict[int, list[int]] = {}
        for token_id in sorted(candidates):
            for matched in range(len(self._text)):
                rest = self.advance(Place(matched), token_id).rest
                if rest is None:
                    continue
                if rest not in verdicts:
                    verdicts[rest] = may_begin(rest)
                if not verdicts[rest]:
                    refused.setdefault(matched, []).append(token_id)
        return refused
