"""What `isotherm profile` does: run prompts through a model as the daemon would, and record where tokens go."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..experts.model import Model, open_model
from ..experts.progress import Progress
from ..placement.trace import RoutingTrace
from .assembly import Assembly, assemble, context_of, make_scheduler, tokenizer_of
from .chat_template import ChatTemplate
from .config import Config, ConfigError, readable
from .messages import Submit
from .prompts import Prompt, encode_prompts, sample_prompts
from .request import SamplingParams
from .routing_recorder import RoutingRecorder
from .sampler import Sampler

STREAMS = 8  # prompts that run at the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What was recorded, and of how many tokens."""

    trace: RoutingTrace
    prompts: int
    prompt_tokens: int
    generated_tokens: int


def run_profile(config: Config, prompts: Sequence[Prompt] | None, max_tokens: int, progress: Progress) -> Profile:
    """Run prompts, or the bundled sample, through the model `config.model`, at most `max_tokens` tokens of answer each.

    Raises PromptError for prompts that do not suit the model and ConfigError for a model without experts, both before
    any weight is read, and what `assemble` raises.
    """
    assert config.model is not None
    requests = _requests(config, prompts, max_tokens)
    assembly = assemble(config, progress)
    try:
        recorder = RoutingRecorder(assembly.model, assembly.runner)
        generated = _run(assembly, requests, recorder, progress)
    finally:
        assembly.engine.stop()  # it was never started, but the runner is its own
    if assembly.cache is not None:
        assembly.cache.write(assembly.runner.seating, progress)
    return Profile(
        trace=recorder.take(),
        prompts=len(requests),
        prompt_tokens=sum(len(request.prompt) for request in requests),
        generated_tokens=generated,
    )


def open_routed(path: Path) -> Model:
    """A model with experts. Raises ModelError, and ConfigError for one without."""
    model = open_model(path)
    if model.spec.routing is None:
        raise ConfigError(f"{readable(path)} has no experts, so no token is routed; name a mixture-of-experts model")
    return model


def _requests(config: Config, prompts: Sequence[Prompt] | None, max_tokens: int) -> list[Submit]:
    assert config.model is not None
    model = open_routed(config.model)
    tokenizer = tokenizer_of(model)
    template = ChatTemplate(tokenizer.chat_template, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token)
    if prompts is None:
        prompts = sample_prompts(chat=tokenizer.chat_template is not None)
    encoded = encode_prompts(prompts, tokenizer, template, context_of(model, config), max_tokens)
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    return [
        Submit(request_id=str(number), prompt=ids, sampling=sampling, eos_token_ids=tokenizer.eos_ids)
        for number, ids in enumerate(encoded)
    ]


def _run(assembly: Assembly, requests: Sequence[Submit], recorder: RoutingRecorder, progress: Progress) -> int:
    """Run all requests to their end; how many tokens came of it."""
    scheduler = make_scheduler(assembly.runner, assembly.config)
    samplers = {}
    for request in requests:
        scheduler.submit(request)
        samplers[request.request_id] = Sampler(request.sampling, request.prompt, request.eos_token_ids)
    generated = ended = 0
    while scheduler.has_work:
        progress("routing prompts", ended, len(requests))
        started = time.monotonic()
        plan = scheduler.schedule()
        logits = assembly.runner.execute(plan)
        recorder.record(plan)
        sampled = (chunk.request_id for chunk in plan.chunks if chunk.sample)
        tokens = [samplers[name].sample(row)[0] for name, row in zip(sampled, logits, strict=True)]
        outcomes = scheduler.commit(plan, tokens, time.monotonic() - started)
        ended += sum(outcome.finished is not None for outcome in outcomes)
        generated += len(tokens)
    progress("routing prompts", len(requests), len(requests))
    return generated
