"""SamplingParams: what a client may ask of the sampler, checked once at the door. And how long a prompt may be."""

from dataclasses import dataclass

from .errors import ContextLengthError, InvalidRequestError
from .structure import Structure


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling and stopping rules of one request. The defaults are OpenAI's.

    temperature 0 is greedy. top_k 0, top_p 1, min_p 0 and penalties at their neutral value are off. `logit_bias` is
    added to the logits by token id. `logprobs` None: none; n: the chosen token's and the n best alternatives';
    `prompt_logprobs` likewise of the prompt's tokens. `allowed_token_ids` None: all; `bad_words`: no output holds one
    of these rows of tokens. max_tokens 0: the prompt is computed, and nothing drawn.
    `stop` strings act on text (see `daemon.text`), and so do include_stop_str_in_output and skip_special_tokens; the
    other stop rules act on tokens. `structure`: the form that the answer must have; a complete one ends the request, be
    `min_tokens` reached or not.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    max_tokens: int = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    allowed_token_ids: frozenset[int] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    structure: Structure | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:  # NaN fails too
                raise InvalidRequestError(f"{name} is {value}; it must lie between {low} and {high}", name)
        if self.min_tokens > self.max_tokens:
            problem = f"min_tokens {self.min_tokens} exceeds max_tokens {self.max_tokens}"
            raise InvalidRequestError(problem, "min_tokens")
        if any(not text for text in self.stop):
            raise InvalidRequestError("stop must not hold an empty string", "stop")
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidRequestError("allowed_token_ids is empty; it must hold at least one id", "allowed_token_ids")
        if not all(self.bad_words):
            raise InvalidRequestError("bad_words must not hold an empty one", "bad_words")


# Lowest and highest value of each number.
RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_p": (1e-6, 1.0),
    "top_k": (0, 2**31),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-3, 1e3),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "max_tokens": (0, 2**31),
    "min_tokens": (0, 2**31),
    "seed": (-(2**63), 2**64 - 1),
    "logprobs": (0, 20),
    "prompt_logprobs": (0, 20),
}


def check_prompt_length(length: int, max_context: int) -> None:
    """Raise InvalidRequestError or ContextLengthError for a prompt of so many tokens that leaves no room to answer."""
    if length == 0:
        raise InvalidRequestError("the prompt is empty; it must hold at least one token", "prompt")
    if length >= max_context:
        raise ContextLengthError(
            f"the prompt has {length} tokens, but prompt and answer together may have at most {max_context}; "
            f"shorten it to {max_context - 1} or less",
            "prompt",
        )
