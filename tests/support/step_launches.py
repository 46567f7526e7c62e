"""Launches of the Triton kernels around attention, on tensors of zeros, for one token and for many."""

import torch
import triton.language as tl
from isotherm.cpu_kernels.kv_layout import KV_KINDS
from isotherm.gpu_kernels.kernels import Kernels, Routing, Sequences
from isotherm.gpu_kernels.triton_kernels import triton_kernels
from isotherm.gpu_kernels.triton_kernels.jit import EXACT, kernel
from support.device_kv import empty_cache, heads_of
from support.torch_values import count_of, empty_record

BLOCKS, HEAD_DIM = 200, 128


@kernel
def dot_kernel(a, b, total):
    """total [16, 64] += a [16, 16] @ b [16, 64], as attention over floats has it."""
    row, column = tl.arange(0, 16)[:, None], tl.arange(0, 64)[None, :]
    left, right = tl.load(a + row * 16 + tl.arange(0, 16)[None, :]), tl.load(b + row * 64 + column)
    at = total + row * 64 + column
    tl.store(at, tl.dot(left, right, tl.load(at), input_precision="ieee"))


def sequences(tokens: int) -> Sequences:
    each = torch.zeros(tokens, dtype=torch.int64)
    return Sequences(each, each, each, torch.zeros(2, BLOCKS, dtype=torch.int64))


def launch() -> None:
    kernels, count, row = triton_kernels(), count_of(1), torch.zeros(1)
    dot_kernel[(1,)](torch.zeros(16, 16), torch.zeros(16, 64), torch.zeros(16, 64), **EXACT)
    for forms in ({"plain", "q8"}, {"bf16"}):
        kernels.rms_norm(torch.zeros(1, 512), torch.zeros(512), 1e-6, empty_record(1, 512, forms), count)
    for mode in range(3):
        launch_rotation(kernels, mode)
    k = torch.zeros(1, HEAD_DIM)
    for kind in KV_KINDS:
        kernels.store(k, k, empty_cache(kind, 1, BLOCKS, HEAD_DIM), sequences(1), count)
    for kind, tokens in (("int16", 1), ("int16", 40), ("int8", 1), ("bf16", 1)):
        q, cache = torch.zeros(tokens, 8 * HEAD_DIM), empty_cache(kind, 1, BLOCKS, HEAD_DIM)
        kernels.attend(q, cache, heads_of(8, 1, HEAD_DIM), sequences(tokens), torch.zeros_like(q), count)
    for rule in ((False, True), (True, False)):
        weights = torch.zeros(1, 8)
        kernels.route(torch.zeros(1, 128), Routing(8, *rule, 1.0), weights.int(), weights, count)
    kernels.sample(torch.zeros(1, 5000), row, row.long(), row.double(), row, row.double(), row.long())


def launch_rotation(kernels: Kernels, mode: int) -> None:
    q, k = torch.zeros(1, 8 * HEAD_DIM), torch.zeros(1, HEAD_DIM)
    norms = None if mode == 0 else (q[0], k[0])
    turns = torch.zeros(4, HEAD_DIM // 2), torch.zeros(4, HEAD_DIM // 2)
    kernels.rotate(q, k, norms, turns, heads_of(8, 1, HEAD_DIM, mode=mode), sequences(1), count_of(1))
