"""Small cases of every op of `gpu_kernels.kernels`, with what each of them writes, to be run by two sets of kernels."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from isotherm.cpu_kernels.kv_layout import KV_KINDS
from isotherm.cpu_kernels.layout import KINDS
from isotherm.gpu_kernels.kernels import Kernels, Routing, Sequences
from isotherm.gpu_kernels.tensors import Record
from support.device_kv import empty_cache, heads_of
from support.matrices import random_matrix, random_rows
from support.torch_values import count_of, empty_record, groups_of, matrix_of, slot_table, tensor

from .moved import Moved

USUAL = ("q4", "q8", "q4k", "q6k", "bf16", "f16", "f32")  # kinds that come first, should time be short
MANY = 40  # tokens


@dataclass
class Case:
    """calls: names of ops and their arguments, in order; outputs: what they write, all of it on the host."""

    name: str
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)

    def add(self, op: str, *arguments: Any, **options: Any) -> None:
        self.calls.append((op, arguments, options))

    def writes(self, *values: torch.Tensor | Record | None) -> None:
        for value in values:
            parts = (value.plain, value.codes, value.scales) if isinstance(value, Record) else (value,)
            self.outputs += [part for part in parts if part is not None]

    def run(self, kernels: Kernels, device: torch.device) -> list[np.ndarray]:
        """The bytes of each output."""
        moved = Moved(device)
        for op, arguments, options in self.calls:
            getattr(kernels, op)(*moved(arguments), **{name: moved(value) for name, value in options.items()})
        return [moved(out).cpu().contiguous().view(torch.uint8).numpy() for out in self.outputs]

    def differs(self, kernels: Kernels, device: torch.device, definition: Kernels) -> str:
        """How what kernels give on a device differs from the definition on the host; empty if no byte does."""
        expected, got = self.run(definition, torch.device("cpu")), self.run(kernels, device)
        wrong = sum(int(np.count_nonzero(one != other)) for one, other in zip(expected, got, strict=True))
        return f"{wrong} of {sum(one.size for one in expected)} bytes differ" if wrong else ""


def cases() -> Iterator[Case]:
    """All of them, the usual ones first."""
    kinds = [*USUAL, *(kind for kind in KINDS if kind not in USUAL)]
    yield from (linear("q4", tokens) for tokens in (1, MANY))
    yield from (experts(("q4",) * 3, tokens) for tokens in (1, MANY))
    yield from (norm(), route(), combine(), sample())
    for kv_kind in KV_KINDS:
        yield from (attention(kv_kind, tokens) for tokens in (1, MANY))
    yield embed("q8")
    for kind in kinds[1:]:
        yield from (linear(kind, tokens) for tokens in (1, MANY))
    for kind in kinds[1:]:
        yield experts((kind, kind, "q8" if kind in ("f32", "f16") else kind), MANY)
    yield from (embed(kind) for kind in kinds if kind != "q8")


def linear(kind: str, tokens: int) -> Case:
    case, x = Case(f"linear {kind} of {tokens}"), tensor(random_rows(tokens, 320))
    record, out = empty_record(tokens, 320, {KINDS[kind].record}), torch.full((tokens, 100), 7.0)
    case.add("to_record", x, record, count_of(tokens))
    case.add("linear", record, matrix_of(random_matrix(kind, 100, 320)), out, count_of(tokens))
    case.writes(record, out)
    return case


def embed(kind: str) -> Case:
    case, out = Case(f"embed {kind}"), torch.full((5, 192), 7.0)
    case.add("embed", torch.tensor([3, 0, 49, 3, 1]), matrix_of(random_matrix(kind, 50, 192)), out, count_of(4))
    case.writes(out)
    return case


def experts(kinds: tuple[str, str, str], tokens: int) -> Case:
    """Five of six experts are here; a token chooses two."""
    case = Case(f"experts {'-'.join(kinds)} of {tokens}")
    resident, hidden, inner, count = (4, 0, 1, 5, 2), 192, 96, count_of(tokens)
    sizes = ((inner, hidden), (inner, hidden), (hidden, inner))
    gate, up, down = (
        matrix_of(*(random_matrix(kind, *size, seed=10 * part + e) for e in resident), bank=True)
        for part, (kind, size) in enumerate(zip(kinds, sizes, strict=True))
    )
    rng = np.random.default_rng(tokens)
    ids = tensor(rng.permuted(np.tile(np.arange(6, dtype=np.int32), (tokens, 1)), axis=1)[:, :2])
    groups = groups_of(ids, len(resident), 16)
    record = empty_record(tokens, hidden, {KINDS[kind].record for kind in kinds[:2]})
    between, outs = empty_record(2 * tokens, inner, {KINDS[kinds[2]].record}), torch.full((2 * tokens, hidden), 7.0)
    case.add("align", ids, slot_table(6, resident), groups, count)
    case.add("to_record", tensor(random_rows(tokens, hidden)), record, count)
    case.add("gate_up", record, gate, up, groups, between, count)
    case.add("down", between, down, groups, outs, count)
    case.writes(between, outs)
    return case


def norm() -> Case:
    case, out = Case("rms_norm"), empty_record(MANY, 320, {"plain", "q8"})
    case.add("rms_norm", tensor(random_rows(MANY, 320)), tensor(random_rows(1, 320)[0]), 1e-5, out, count_of(MANY - 1))
    case.writes(out)
    return case


def route() -> Case:
    case, ids, weights = Case("route"), torch.zeros(MANY, 8, dtype=torch.int32), torch.zeros(MANY, 8)
    rule = Routing(8, softmax_chosen=False, renormalise=True, scale=1.0)
    case.add("route", tensor(3 * random_rows(MANY, 128)), rule, ids, weights, count_of(MANY))
    case.writes(ids, weights)
    return case


def combine() -> Case:
    case, x = Case("combine"), tensor(random_rows(MANY, 320))
    weights = tensor(np.abs(random_rows(MANY, 4)))
    case.add("combine", x, tensor(random_rows(4 * MANY, 320)), weights, None, count_of(MANY))
    case.add("combine", x, tensor(random_rows(MANY, 320)), None, tensor(random_rows(MANY, 1)[:, 0]), count_of(MANY))
    case.writes(x)
    return case


def sample() -> Case:
    case, rows = Case("sample"), 4
    out, logits = torch.zeros(rows, dtype=torch.int64), tensor(3 * random_rows(rows, 1000))
    case.add(
        "sample",
        logits,
        torch.tensor([0.0, 1.0, 0.6, 0.8]),
        torch.tensor([0, 0, 40, 50]),
        torch.tensor([1.0, 0.95, 1.0, 0.9], dtype=torch.float64),
        torch.tensor([0.0, 0.0, 0.1, 0.05]),
        torch.tensor([0.1, 0.5, 0.9, 0.99], dtype=torch.float64),
        out,
    )
    case.writes(out)
    return case


def attention(kv_kind: str, tokens: int) -> Case:
    """Rotation, the store into the cache, and attention of a prompt of `tokens`, or of one token after `MANY`."""
    case = Case(f"rotate, store and attend {kv_kind} of {tokens}")
    heads, kv_heads, head_dim = 8, 2, 64
    shape, cache = heads_of(heads, kv_heads, head_dim, 1, 1e-5), empty_cache(kv_kind, kv_heads, 8, head_dim)
    turns = tensor(random_rows(128, head_dim // 2)), tensor(random_rows(128, head_dim // 2))
    norms = tensor(random_rows(1, head_dim)[0]), tensor(random_rows(1, head_dim)[0])
    table = torch.tensor([[3, 1, 6, 0]])
    for first, count in ((0, MANY), (MANY, 1))[: 1 + (tokens == 1)]:
        positions = torch.arange(first, first + count)
        slots = table[0, positions // 16] * 16 + positions % 16
        places = Sequences(positions, slots, torch.zeros(count, dtype=torch.int64), table)
        q = tensor(random_rows(count, heads * head_dim))
        k, v = (tensor(random_rows(count, kv_heads * head_dim) * scale) for scale in (1.0, 0.5))
        out = torch.full_like(q, 7.0)
        case.add("rotate", q, k, norms, turns, shape, places, count_of(count))
        case.add("store", k, v, cache, places, count_of(count))
        case.add("attend", q, cache, shape, places, out, count_of(count))
        case.writes(q, out)
    case.writes(cache.memory)
    return case
