"""What the engine is judged by: llama.cpp's log-probabilities, and the reference with the engine's own rounding."""

import json
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from isotherm.cpu_kernels.layout import KINDS, Record, packed_shape
from isotherm.cpu_kernels.reference import recorded, unpack
from isotherm.experts.checkpoint import Tensor
from isotherm.experts.codes import pack_rows
from isotherm.experts.formats import format_of
from isotherm.experts.model import Model
from isotherm.experts.reference import Array, ReferenceDecoder, mix, route, sigmoid


def packed_values(tensor: Tensor) -> Array:
    """The float32 numbers [rows, columns] that the packed form of a matrix stands for."""
    kind = format_of(tensor).packed
    rows, columns = tensor.shape
    tiles = np.zeros(packed_shape(kind, rows, columns), np.uint8)
    pack_rows(tensor.format, tensor.rows(0, rows), columns, tiles)
    return unpack(kind, tiles, rows, columns)


class RoundedReference(ReferenceDecoder):
    """The reference in float64 with what the packed formats round: weights to their packed numbers, and activations
    as the kinds of the matrices read them. All else is exact. Keeps all weights it has used."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._packed = cache(self._read)

    def logits(self, tokens: Sequence[int]) -> Array:
        return self._product(self.hidden(tokens), "head")

    def _read(self, role: str, expert: int | None = None) -> tuple[Array, Record]:
        """A matrix's packed numbers, and the form of the activations that it reads."""
        tensor = self.weights.tensor(role) if expert is None else self.weights.expert(role, expert)
        return packed_values(tensor).astype(self.dtype), KINDS[format_of(tensor).packed].record

    def _dense(self, role: str) -> Array:
        is_vector = len(self.weights.shape(role)) == 1
        return super()._dense(role) if is_vector else self._packed(role)[0]

    def _product(self, x: Array, role: str, expert: int | None = None) -> Array:
        values, record = self._packed(role, expert)
        return (x if record == "plain" else recorded(x, record).astype(self.dtype)) @ values.T

    def _linear(self, x: Array, role: str) -> Array:
        y = self._product(x, role)
        return y + self._dense(role + "_bias") if self.weights.has(role + "_bias") else y

    def _feed_forward(self, prefix: str, x: Array, expert: int | None = None) -> Array:
        gated = self._product(x, prefix + "gate", expert)
        inner = gated * sigmoid(gated) * self._product(x, prefix + "up", expert)
        return self._product(inner, prefix + "down", expert)

    def _moe(self, prefix: str, x: Array) -> Array:
        assert self.spec.routing is not None
        experts, weights = route(self._product(x, prefix + "router"), self.spec.routing)
        y = mix(x, experts, weights, lambda expert, rows: self._feed_forward(prefix + "experts.", rows, expert))
        if self.spec.shared_intermediate_size:
            gate = sigmoid(self._product(x, prefix + "shared_gate")) if self.spec.shared_gate else 1.0
            y = y + gate * self._feed_forward(prefix + "shared.", x)
        return y


def errors(got: Array, expected: Array) -> Array:
    """||got - expected|| / ||expected|| of each row."""
    difference = got.astype(np.float64) - expected.astype(np.float64)
    relative: Array = np.linalg.norm(difference, axis=-1) / np.linalg.norm(expected.astype(np.float64), axis=-1)
    return relative


def log_softmax(logits: Array) -> Array:
    """Over the last axis, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


@dataclass(frozen=True)
class Completion:
    """Greedy tokens, and at each of them the best alternatives (id, log-probability), best first."""

    tokens: list[int]
    top: list[list[tuple[int, float]]]


class LlamaServer:
    """llama.cpp on one GGUF file, on one thread; float32 KV and no fused attention where `exact`."""

    def __init__(self, path: Path, *, context: int = 256, exact: bool = False) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx = context
        params.n_parallel = 1
        params.warmup = False
        params.verbosity = 0
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        if exact:
            params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
            params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._server = xllamacpp.Server(params)

    def complete(self, prompt: Sequence[int], count: int, top: int, banned: Sequence[int] = ()) -> Completion:
        """Up to `count` greedy tokens, none of them `banned`, with the `top` alternatives of the unbiased model.

        Less where the model ends its text. Tokens that end inside a character are not reported.
        """
        fields = {"prompt": [int(token) for token in prompt], "n_predict": count, "n_probs": top, "temperature": 0}
        fields |= {"cache_prompt": False, "logit_bias": [[int(token), False] for token in banned]}
        body = json.dumps(fields).encode()
        request = urllib.request.Request(
            f"{self._server.listening_address}/completion", body, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request) as response:
            places: list[dict[str, Any]] = json.load(response)["completion_probabilities"]
        best = [[(one["id"], one["logprob"]) for one in place["top_logprobs"]] for place in places]
        return Completion([place["id"] for place in places], best)


@contextmanager
def llama_server(path: Path, **options: Any) -> Iterator[LlamaServer]:
    """A server that ends with the block."""
    server = LlamaServer(path, **options)
    try:
        yield server
    finally:
        del server._server
