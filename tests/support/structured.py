"""Structured answers without a model: a small vocabulary, and answers that are drawn as an engine draws them."""

from collections.abc import Callable

import numpy as np
from isotherm.daemon.constraint import Constraint
from isotherm.daemon.guide import Guide, GuideWorkers
from isotherm.daemon.request import SamplingParams
from isotherm.daemon.sampler import Sampler
from isotherm.daemon.structure import Structure
from isotherm.daemon.structures import Structures
from numpy.typing import NDArray

_BYTES = [bytes([i]) for i in range(256)]
_WORDS = [
    *(b'{"', b'":', b'","', b'"}', b'": "', b"true", b"false", b"null", b"[]", b"{}", b"name", b"age", b"kind", b"th"),
    *(
        b"00",
        b"000",
        b"0000",
        b"12",
        b"  ",
        b"\n\n",
        b"</",
        b"think",
        b">\n",
        b">{",
        b">x",
        b"</think>{",
        b"ab",
        b"abc",
    ),
]
EOS = 256 + len(_WORDS)
THINK_END = EOS + 1
VOCAB_SIZE = EOS + 2
PADDED_SIZE = VOCAB_SIZE + 6
"""Logits that a model may have more than there are tokens."""


class WordTokenizer:
    """All bytes, some words, and two control tokens; it takes the longest word that fits."""

    vocab_size = VOCAB_SIZE
    special_ids = frozenset({EOS, THINK_END})
    tokens = (*_BYTES, *_WORDS, b"<eos>", b"<stop-thinking>")

    def token_bytes(self, token_id: int) -> bytes:
        return self.tokens[token_id]

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        data, ids = text.encode(), []
        while data:
            best = max((i for i in range(EOS) if data.startswith(self.tokens[i])), key=lambda i: len(self.tokens[i]))
            ids.append(best)
            data = data[len(self.tokens[best]) :]
        return ids

    def text(self, ids: list[int]) -> str:
        return b"".join(self.tokens[i] for i in ids if i < EOS).decode(errors="replace")


TOKENIZER = WordTokenizer()
STRUCTURES = Structures(TOKENIZER)


def compiled(source: str, kind: str = "json_schema", trigger: str | None = None) -> Constraint:
    return STRUCTURES.compile(Structure(kind, source, trigger))


def by_chance(seed: int, liked: float = 0.0) -> Callable[[], NDArray[np.float32]]:
    """Logits without a model; `liked` is added where a text may come to an end."""
    random = np.random.default_rng(seed)
    enders = [EOS, *(i for i, token in enumerate(TOKENIZER.tokens) if token and token[-1:] in b'"}]')]

    def logits() -> NDArray[np.float32]:
        row = random.standard_normal(PADDED_SIZE, dtype=np.float32)
        row[enders] += np.float32(liked)
        return row

    return logits


def answer(
    constraint: Constraint,
    logits: Callable[[], NDArray[np.float32]],
    *,
    force: bool = True,
    max_tokens: int = 400,
    **sampling: object,
) -> tuple[list[int], bool]:
    """The tokens of an answer, and whether it ended by itself. Draws one row of logits for each token, as if each were
    computed, so that a forced answer can be compared with one that is not."""
    params = SamplingParams(**{"seed": 1, "max_tokens": max_tokens, **sampling})
    sampler, workers = Sampler(params, (), [EOS]), GuideWorkers(1)
    try:
        guide = Guide(constraint, [EOS], [EOS], workers, force=force)
        ids: list[int] = []
        while len(ids) < max_tokens:
            token, _ = sampler.sample(logits(), guide.allowed(PADDED_SIZE))
            if token == EOS:
                return ids, True
            ids.append(token)
            follow = guide.accept(token)
            for forced in follow.tokens:
                logits()
                sampler.skip(forced)
            ids += follow.tokens
            if follow.complete:
                return ids, True
        return ids, False
    finally:
        workers.close()
