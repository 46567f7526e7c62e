"""Ollama's options and format in our terms."""

from typing import Any

import orjson

from ...daemon.errors import InvalidRequestError
from ...daemon.structure import Structure
from ..chat.wish import Thinking
from ..fields import FieldNotes
from ..sampling import stop_strings
from .request import HARMLESS, REFUSED, REFUSED_OPTIONS, OllamaOptions, OllamaRequest

_SAME = {"temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty"}
_LEVELS = ("low", "medium", "high")


def check_fields(body: OllamaRequest, notes: FieldNotes) -> None:
    """Raises InvalidRequestError for a field that this server cannot honour; notes those that it does not know."""
    notes.check(body.model_extra, REFUSED, HARMLESS)
    notes.check(None if body.options is None else body.options.model_extra, REFUSED_OPTIONS, HARMLESS)


def sampling_of(body: OllamaRequest) -> dict[str, Any]:
    """The fields of SamplingParams that were given. Raises InvalidRequestError."""
    options = body.options or OllamaOptions()
    given = options.model_dump(include=_SAME, exclude_none=True)
    if options.top_k is not None:
        given["top_k"] = max(options.top_k, 0)
    if options.repeat_penalty is not None:
        given["repetition_penalty"] = options.repeat_penalty
    if options.seed is not None and options.seed >= 0:  # below: any
        given["seed"] = options.seed
    if options.stop:
        given["stop"] = stop_strings(options.stop)
    if body.logprobs:
        given["logprobs"] = body.top_logprobs or 0
    return given


def max_tokens_of(body: OllamaRequest) -> int | None:
    """None for as many as fit: so Ollama takes numbers below 1."""
    wanted = None if body.options is None else body.options.num_predict
    return wanted if wanted is not None and wanted > 0 else None


def structure_of(body: OllamaRequest) -> Structure | None:
    """The form that the answer must have. Raises InvalidRequestError."""
    if not body.format:
        return None
    if body.format == "json":
        return Structure("json_schema", '{"type":"object"}')
    if isinstance(body.format, str):
        raise InvalidRequestError("format must be 'json' or a JSON schema", "format")
    return Structure("json_schema", orjson.dumps(body.format).decode())


def thinking_of(body: OllamaRequest) -> Thinking:
    """Raises InvalidRequestError for a level that is none."""
    if not isinstance(body.think, str):
        return Thinking(enabled=body.think)
    if body.think not in _LEVELS:
        raise InvalidRequestError(f"think must be true, false or one of {', '.join(_LEVELS)}", "think")
    return Thinking(enabled=True, effort=body.think)
