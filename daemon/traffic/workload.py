"""What is asked: seeded prompts of wanted lengths, or those of a file."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..prompts import Prompt

# Short and frequent, so that most vocabularies have a token for each of them with the space before it.
_WORDS = (
    "the of and to in is for that it with as was on be at by this have from or one had not but what all were when "
    "we there can an your which their said if do will each about how up out them then she many some so these would "
    "other into has more her two like him see time could no make than first been its who now people my made over "
    "did down only way find use may water long little very after called just where most know"
)
_TASK = "\nInvent an object of daily life and describe it as JSON."
KINDS = ("tool", "toy", "food", "place")
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "kind": {"type": "string", "enum": KINDS},
        "price": {"type": "integer", "minimum": 0, "maximum": 1000},
        "known": {"type": "boolean"},
    },
    "required": ["name", "kind", "price", "known"],
    "additionalProperties": False,
}
_FORMAT = {"type": "json_schema", "json_schema": {"name": "thing", "strict": True, "schema": SCHEMA}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """prompt, gen: tokens of a prompt and of an answer. spread: how much shorter or longer than that both may be, as a
    share. shared_prefix: tokens that all prompts begin with. prompts: to be asked by turns instead of random words.
    structured: answers are held to `SCHEMA`. ignore_eos: answers are as long as wanted whatever they say, by a field
    that most servers for local models know."""

    model: str
    prompt: int
    gen: int
    spread: float = 0.0
    shared_prefix: int = 0
    prompts: tuple[Prompt, ...] = ()
    structured: bool = False
    ignore_eos: bool = True
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Scale:
    """How the server counts words: tokens = around + each * words."""

    around: float = 0.0
    each: float = 1.0

    def words(self, tokens: int) -> int:
        return max(round((tokens - self.around) / self.each), 1)


def scale_of(points: Sequence[tuple[int, int]]) -> Scale:
    """The scale through two points of (words, tokens)."""
    (few, small), (many, large) = points
    each = (large - small) / (many - few)
    return Scale(small - each * few, each) if each > 0 else Scale()


def plain_body(workload: Workload, words: int, number: int) -> dict[str, Any]:
    """A request for one token after so many words."""
    return _body(workload, _words(_random(workload, number), words), 1)


def body(workload: Workload, scale: Scale, number: int, place: int) -> dict[str, Any]:
    """A request; it is the same whenever and wherever it is sent.

    number: its words are drawn by, so that no two have the same. place: its lengths are drawn by, so that all points
    have the same ones.
    """
    lengths = _random(workload, f"lengths {place}")
    prompt, gen = (_drawn(lengths, middle, workload.spread) for middle in (workload.prompt, workload.gen))
    if workload.prompts:
        return _body(workload, workload.prompts[place % len(workload.prompts)].content, gen)
    shared = scale.words(workload.shared_prefix) if workload.shared_prefix else 0
    own = max(scale.words(prompt) - shared, 1)
    words = (_words(_random(workload, "shared"), shared), _words(_random(workload, number), own))
    return _body(workload, " ".join(filter(None, words)), gen)


def fits_schema(text: str) -> bool:
    """Whether an answer is what `SCHEMA` allows."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return (
        isinstance(value, dict)
        and value.keys() == set(SCHEMA["required"])
        and isinstance(value["name"], str)
        and value["kind"] in KINDS
        and type(value["price"]) is int
        and isinstance(value["known"], bool)
    )


def _body(workload: Workload, content: str | Sequence[Mapping[str, Any]], max_tokens: int) -> dict[str, Any]:
    text = content + _TASK if workload.structured and isinstance(content, str) else content
    extra: dict[str, Any] = {"response_format": _FORMAT} if workload.structured else {}
    if workload.ignore_eos and not workload.structured:
        extra["ignore_eos"] = True
    return {
        "model": workload.model,
        "messages": [{"role": "user", "content": text}] if isinstance(text, str) else list(text),
        "max_tokens": max_tokens,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **extra,
    }


def _random(workload: Workload, name: object) -> random.Random:
    return random.Random(f"{workload.seed} {name}")


def _drawn(draw: random.Random, middle: int, spread: float) -> int:
    return max(round(middle * draw.uniform(1 - spread, 1 + spread)), 1)


def _words(draw: random.Random, count: int) -> str:
    return " ".join(draw.choices(_WORDS.split(), k=count))
