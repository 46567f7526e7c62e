"""From the fields that OpenAI's completions share to those of SamplingParams."""

from typing import Any

from ..sampling import check_choices, stop_strings
from ..service import Service
from .schemas import CompletionFields
from .token_fields import token_rules


def sampling_fields(body: CompletionFields, service: Service, logprobs: int | None) -> dict[str, Any]:
    """The fields of SamplingParams but max_tokens. Raises InvalidRequestError that names the field."""
    given = body.model_dump(include=_PLAIN, exclude_none=True)
    if given.get("top_k") == -1:  # another way in use to say "off"
        given["top_k"] = 0
    if given.get("seed") == -1:  # and "any"
        del given["seed"]
    return {
        **given,
        **token_rules(body, service),
        "logprobs": logprobs,
        "stop": stop_strings(body.stop),
        "stop_token_ids": frozenset(body.stop_token_ids or ()),
    }


_PLAIN = {
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "min_tokens",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
}


def choices_per_prompt(body: CompletionFields, service: Service, num_prompts: int) -> int:
    """The checked `n`."""
    return check_choices(service, 1 if body.n is None else body.n, num_prompts)
