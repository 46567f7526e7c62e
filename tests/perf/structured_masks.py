"""How long structured answers take beside the model, as a table in Markdown: on SmolLM2's vocabulary, without a model.

compile: once for all requests that ask for the same. mask: what may come next, computed beside the model's step.
accept: in the engine's thread, after each token. forced: the share of tokens that the model is not asked for.
"""

import json
import time
from statistics import median

import numpy as np
from isotherm.daemon.guide import Guide, GuideWorkers
from isotherm.daemon.request import SamplingParams
from isotherm.daemon.sampler import Sampler
from isotherm.daemon.structure import Structure
from isotherm.daemon.structures import Structures
from isotherm.daemon.tokenizer import Tokenizer
from support.vocab import smollm2_metadata

PERSON = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 30},
        "occupation": {"enum": ["plumber", "teacher", "farmer", "programmer"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "e-mail": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 4},
    },
    "required": ["first_name", "occupation", "age", "e-mail", "tags"],
    "additionalProperties": False,
}
STRUCTURES = {
    "any object": Structure("json_schema", '{"type": "object"}'),
    "a person": Structure("json_schema", json.dumps(PERSON)),
    "a date": Structure("regex", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"),
    "arithmetic": Structure("lark", 'start: sum\nsum: term ("+" term)*\nterm: /[0-9]{1,9}/ | "(" sum ")"'),
}
ANSWERS, MAX_TOKENS = 20, 200


def main() -> None:
    tokenizer = Tokenizer.from_gguf(smollm2_metadata())
    structures = Structures(tokenizer)
    began = time.perf_counter()
    structures.compile(Structure("regex", "a"))
    print(f"vocabulary of {tokenizer.vocab_size}: {(time.perf_counter() - began) * 1e3:.0f} ms\n")
    print("| structure | compile, ms | mask, µs: median | longest | accept, µs: median | forced |")
    print("|---|---|---|---|---|---|")
    for name, structure in STRUCTURES.items():
        print(f"| {name} | {' | '.join(measure(structures, structure, tokenizer))} |")


def measure(structures: Structures, structure: Structure, tokenizer: Tokenizer) -> list[str]:
    began = time.perf_counter()
    constraint = structures.compile(structure)
    compile_s = time.perf_counter() - began
    workers, random = GuideWorkers(1), np.random.default_rng(1)
    masks: list[float] = []
    accepts: list[float] = []
    tokens = forced = 0
    for seed in range(ANSWERS):
        guide = Guide(constraint, tokenizer.eos_ids, tokenizer.eos_ids, workers, force=True)
        sampler = Sampler(SamplingParams(seed=seed), ())
        for _ in range(MAX_TOKENS):
            began = time.perf_counter()
            allowed = guide.allowed(tokenizer.vocab_size)
            masks.append(time.perf_counter() - began)
            token, _ = sampler.sample(random.standard_normal(tokenizer.vocab_size, dtype=np.float32), allowed)
            began = time.perf_counter()
            follow = guide.accept(token)
            accepts.append(time.perf_counter() - began)
            tokens += 1 + len(follow.tokens)
            forced += len(follow.tokens)
            if follow.complete:
                break
    workers.close()
    times = (median(masks) * 1e6, max(masks) * 1e6, median(accepts) * 1e6)
    return [f"{compile_s * 1e3:.1f}", *(f"{value:.0f}" for value in times), f"{forced / tokens:.0%}"]


if __name__ == "__main__":
    main()
