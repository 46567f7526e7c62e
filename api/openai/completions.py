"""POST /v1/completions."""

from dataclasses import replace
from typing import Any

from fastapi import APIRouter

from ...daemon.request import SamplingParams
from ..body import parse
from ..fields import FieldNotes
from ..openapi import described
from ..prompts import Prompt, kept_tokens, list_prompts, read_prompt
from ..sampling import check_model, room_for, submits
from ..server import Server
from ..service import Service
from ..stream import Job
from .answers import Completion
from .completion_encoder import CompletionEncoder, Wanted
from .endpoint import endpoint
from .fields import HARMLESS, REFUSED
from .sampling import choices_per_prompt, sampling_fields
from .schemas import CompletionRequest
from .structures import structure_of

_DEFAULT_MAX_TOKENS = 16


def router(server: Server, notes: FieldNotes) -> APIRouter:
    """The completions endpoint of a server."""
    told = described(body=CompletionRequest, answer=Completion, stream="text/event-stream")
    return endpoint("/v1/completions", prepare_completion, server, notes, told)


def prepare_completion(service: Service, notes: FieldNotes, raw: bytes, tenant: str) -> Job:
    """Check a request and turn it into a job. Raises RequestError or UnknownModelError."""
    body = parse(raw, CompletionRequest)
    check_model(service, body.model)
    notes.check(body.model_extra, REFUSED, HARMLESS)
    wanted = Wanted(
        echo=bool(body.echo),
        logprobs=body.logprobs,
        prompt_logprobs=body.prompt_logprobs,
        token_ids=bool(body.return_token_ids),
        tokens_as_ids=bool(body.return_tokens_as_token_ids),
        usage=body.include_usage,
    )
    values: list[Any] = list_prompts(body.prompt)
    n = choices_per_prompt(body, service, len(values))  # before a million of them are encoded
    keep = kept_tokens(service, body.truncate_prompt_tokens, body.max_tokens)
    prompts = [read_prompt(service, value, keep) for value in values]
    structure = structure_of(service, body)
    pairs = [(each.ids, replace(_params(service, body, each, wanted), structure=structure)) for each in prompts]
    return Job(
        submits=submits(service, pairs, n, tenant + (body.cache_salt or ""), body.priority),
        choices_per_prompt=n,
        stream=bool(body.stream),
        encoder=CompletionEncoder(service, [prompt for prompt in prompts for _ in range(n)], wanted),
    )


def _params(service: Service, body: CompletionRequest, prompt: Prompt, wanted: Wanted) -> SamplingParams:
    param = "prompt" if body.max_tokens is None else "max_tokens"
    max_tokens = room_for(service, prompt.ids, body.max_tokens, _DEFAULT_MAX_TOKENS, param, least=0)
    fields = sampling_fields(body, service, body.logprobs)
    return SamplingParams(**fields, max_tokens=max_tokens, prompt_logprobs=wanted.top_of_prompt)
