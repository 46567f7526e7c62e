"""A Vocabulary from GGUF metadata: byte-level BPE ("gpt2") or SentencePiece BPE ("llama")."""

from collections.abc import Mapping
from dataclasses import replace
from enum import IntEnum
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, models, normalizers, processors

from ..experts.errors import CheckpointError, UnsupportedModelError
from .pretokenizers import pre_tokenizer
from .vocabulary import SPACE_MARK, Vocabulary, byte_level_bytes, end_tokens, is_byte_token, sentencepiece_bytes

_PREFIX = "tokenizer.ggml."
_NO_PRE = "tokenizer.ggml.pre is missing; words are cut by the 'default' rule, which may hurt the output"


class _TokenType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class _Metadata:
    """The tokenizer keys of one GGUF file, checked.

    tokens: names by id, unique and valid Unicode, and `id_of` those; raw_tokens: as the file has them. special: control
    tokens, among them every begin and end token whatever its type says. named: tokens that text matches before any
    merging.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self.raw_tokens: list[str] = self.array("tokens", str)
        self.tokens = self.raw_tokens
        if not _is_unicode("".join(self.tokens)):  # which one look tells of most vocabularies
            self.tokens = [token if _is_unicode(token) else f"[BYTES {i}]" for i, token in enumerate(self.tokens)]
        self.id_of = {token: token_id for token_id, token in enumerate(self.tokens)}
        if len(self.id_of) != len(self.tokens):
            raise CheckpointError(f"{_PREFIX}tokens names a token twice; convert the model again")
        has_types = self.get("token_type") is not None
        types = self.per_token("token_type", int) if has_types else [_TokenType.NORMAL] * len(self.tokens)
        self._types = np.array(types)
        self.bos_id, self.eos_id = self.token_id("bos_token_id"), self.token_id("eos_token_id")
        ends = [self.eos_id, self.token_id("eot_token_id"), self.token_id("eom_token_id")]
        named_ends = [self.id_of.get(token) for token in end_tokens(self.id_of)]
        self.eos_ids = frozenset(token_id for token_id in ends + named_ends if token_id is not None)
        begins = frozenset() if self.bos_id is None else frozenset({self.bos_id})
        self.special = self.ids(_TokenType.UNKNOWN, _TokenType.CONTROL) | self.eos_ids | begins
        self.named = self.ids(_TokenType.USER_DEFINED) - self.special

    def get(self, name: str) -> Any:
        return self._values.get(_PREFIX + name)

    @property
    def chat_template(self) -> str | None:
        value = self._values.get("tokenizer.chat_template")
        if value is not None and not isinstance(value, str):
            raise CheckpointError("tokenizer.chat_template is not a string")
        return value

    def array(self, name: str, kind: type | tuple[type, ...]) -> list[Any]:
        value = self.get(name)
        if not isinstance(value, list) or not all(issubclass(found, kind) for found in set(map(type, value))):
            raise CheckpointError(f"{_PREFIX}{name} is missing or is not an array of the right type")
        return value

    def per_token(self, name: str, kind: type | tuple[type, ...]) -> list[Any]:
        values = self.array(name, kind)
        if len(values) != len(self.tokens):
            raise CheckpointError(f"{_PREFIX}{name} has {len(values)} entries for {len(self.tokens)} tokens")
        return values

    def token_id(self, name: str) -> int | None:
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value < len(self.tokens):
            raise CheckpointError(f"{_PREFIX}{name} is {value}, outside the {len(self.tokens)} tokens")
        return value

    def added(self, name: str, token_id: int | None, default: bool) -> int | None:
        """The token that goes around every prompt, if `name` says so."""
        if self.get(name) and token_id is None:
            raise CheckpointError(f"{_PREFIX}{name} is true but the metadata names no such token")
        return token_id if self.flag(name, default) else None

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        return default if value is None else bool(value)

    def ids(self, *types: _TokenType) -> frozenset[int]:
        return frozenset(np.flatnonzero(np.isin(self._types, types)).tolist())


def _is_unicode(text: str) -> bool:
    """Readers keep bytes that are not UTF-8 as surrogates, which no encoder accepts."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_gguf(values: Mapping[str, Any]) -> Vocabulary:
    """Build the vocabulary from GGUF key-values, arrays as lists.

    Raises CheckpointError for missing or inconsistent keys, UnsupportedModelError for an unknown tokenizer model or
    pre-tokenizer.
    """
    model = values.get(_PREFIX + "model")
    if model == "gpt2":
        return _byte_level(_Metadata(values))
    if model == "llama":
        return _sentencepiece(_Metadata(values))
    raise UnsupportedModelError(f"tokenizer.ggml.model is {model!r}; implemented are 'gpt2' and 'llama'")


def _byte_level(metadata: _Metadata) -> Vocabulary:
    name = metadata.get("pre")
    pre = pre_tokenizer("default" if name is None else name)
    # What is typed by a user must never merge into a control token.
    control = {metadata.tokens[i] for i in metadata.special}
    lines = (line for line in metadata.array("merges", str) if line.replace(" ", "", 1) not in control)
    merges = [line.partition(" ")[::2] for line in lines]
    encoder = _encoder(metadata, merges, ignore_merges=pre.whole_words)
    encoder.pre_tokenizer = pre.build()
    token_bytes = byte_level_bytes(metadata.raw_tokens, metadata.special | metadata.named)
    vocabulary = _finish(metadata, encoder, token_bytes, adds_bos=pre.adds_bos)
    return replace(vocabulary, fallbacks=(_NO_PRE,)) if name is None else vocabulary


def _sentencepiece(metadata: _Metadata) -> Vocabulary:
    byte_ids = metadata.ids(_TokenType.BYTE) - metadata.special
    for token_id in byte_ids:
        if not is_byte_token(metadata.tokens[token_id]):
            raise CheckpointError(f"byte token {token_id} is named {metadata.tokens[token_id]!r} instead of <0xNN>")
    unknown = metadata.token_id("unknown_token_id")
    encoder = _encoder(
        metadata,
        _score_merges(metadata),
        byte_fallback=True,
        fuse_unk=True,
        unk_token=None if unknown is None else metadata.tokens[unknown],
    )
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE_MARK)]
    if metadata.flag("add_space_prefix", True):
        steps.insert(0, normalizers.Prepend(SPACE_MARK))
    encoder.normalizer = normalizers.Sequence(steps)
    token_bytes = sentencepiece_bytes(metadata.raw_tokens, metadata.special | metadata.named, byte_ids)
    return _finish(metadata, encoder, token_bytes, adds_bos=True)


def _score_merges(metadata: _Metadata) -> list[tuple[str, str]]:
    """SentencePiece joins the pair whose result scores best; as a merge list that is every split, best result first."""
    scores = metadata.per_token("scores", (int, float))
    rank = {metadata.tokens[i]: i for i in sorted(metadata.ids(_TokenType.NORMAL) - metadata.special)}
    by_score = sorted(rank, key=lambda token: -scores[rank[token]])
    merges: list[tuple[str, str]] = []
    for token in by_score:
        splits = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        known = [pair for pair in splits if pair[0] in rank and pair[1] in rank]
        merges += sorted(known, key=lambda pair: (rank[pair[0]], rank[pair[1]]))
    return merges


def _encoder(metadata: _Metadata, merges: list[tuple[str, str]], **options: Any) -> tokenizers.Tokenizer:
    try:
        model = models.BPE(vocab=metadata.id_of, merges=merges, **options)
    except Exception as error:  # the library raises bare Exception for a merge of unknown tokens
        raise CheckpointError(f"tokenizer.ggml.merges do not fit the tokens: {error}") from error
    return tokenizers.Tokenizer(model)


def _finish(
    metadata: _Metadata, encoder: tokenizers.Tokenizer, token_bytes: list[bytes], *, adds_bos: bool
) -> Vocabulary:
    tokens = metadata.tokens
    encoder.add_special_tokens(
        [AddedToken(tokens[i], normalized=False, special=True) for i in sorted(metadata.special)]
    )
    encoder.add_tokens([AddedToken(tokens[i], normalized=False, special=False) for i in sorted(metadata.named)])
    first = metadata.added("add_bos_token", metadata.bos_id, adds_bos)
    last = metadata.added("add_eos_token", metadata.eos_id, False)
    encoder.post_processor = processors.TemplateProcessing(
        single=[*([tokens[first]] if first is not None else []), "$A", *([tokens[last]] if last is not None else [])],
        special_tokens=[(tokens[i], i) for i in {first, last} if i is not None],
    )
    return Vocabulary(
        encoder=encoder,
        token_bytes=token_bytes,
        special_ids=metadata.special,
        bos_id=metadata.bos_id,
        eos_id=metadata.eos_id,
        eos_ids=metadata.eos_ids,
        chat_template=metadata.chat_template,
    )
