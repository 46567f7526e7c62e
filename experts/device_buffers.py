"""The memory that ops on an accelerator pass values in: one set for all its layers, sized for the largest step."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ..cpu_kernels.layout import Record as Form
from ..cpu_kernels.layout import padded
from ..gpu_kernels.tensors import Groups, most_blocks
from .device_forms import DeviceForms
from .device_memory import DeviceMemory
from .device_rows import DeviceRows
from .spec import ModelSpec
from .step_inputs import StepLimits

BLOCK = 16  # pairs of an expert that a kernel takes at a time


@dataclass(frozen=True, slots=True)
class DeviceBranch:
    """A feed-forward branch: inner activations of its pairs, and which expert each pair belongs to."""

    inner: DeviceRows
    order: torch.Tensor
    slots: torch.Tensor
    top_k: int

    def groups(self, rows: int, slots: int) -> Groups:
        """For so many tokens, on experts in so many slots."""
        blocks = most_blocks(rows * self.top_k, slots, BLOCK)
        return Groups(self.order[: blocks * BLOCK], self.slots[:blocks], BLOCK, self.top_k)


class DeviceBuffers:
    """As `buffers.Buffers`. Rows are tokens, or pairs in a branch. x and outs are as wide as the host's, padded to
    whole spans; spare, landed: what x is sorted through, and the outputs of other devices' experts."""

    def __init__(
        self,
        memory: DeviceMemory,
        spec: ModelSpec,
        limits: StepLimits,
        forms: DeviceForms,
    ) -> None:
        tokens, routing, wide = limits.tokens, spec.routing, padded(spec.hidden_size)
        experts, top_k = (routing.num_experts, routing.top_k) if routing else (1, 1)
        self.x, self.spare = (memory.empty((tokens, wide), torch.float32) for _ in range(2))
        self.normed = DeviceRows(memory, tokens, spec.hidden_size, forms.normed)
        self.q, self.k, self.v, self.attended = (
            memory.empty((tokens, size), torch.float32)
            for size in (spec.q_size, spec.kv_size, spec.kv_size, spec.q_size)
        )
        self.mixed = DeviceRows(memory, tokens, spec.q_size, forms.mixed)
        self.router_logits, self.gate_logits = (memory.empty((tokens, n), torch.float32) for n in (experts, 1))
        self.logits = memory.empty((limits.sequences, padded(spec.vocab_size)), torch.float32)
        self.outs, self.landed = (memory.empty((tokens * top_k, wide), torch.float32) for _ in range(2))
        self.landed_pairs = memory.empty((tokens * top_k,), torch.int64)
        self.everyone = memory.empty((tokens, 1), torch.int32)  # the choices where there is one expert for all
        self.only = memory.empty((1,), torch.int32)  # and its table of slots
        self.branches = {
            name: _branch(memory, spec, name, tokens, read, experts, top_k) for name, read in forms.inner.items()
        }


def _branch(
    memory: DeviceMemory, spec: ModelSpec, name: str, tokens: int, forms: Iterable[Form], experts: int, top_k: int
) -> DeviceBranch:
    sizes = {"": spec.intermediate_size, "shared": spec.shared_intermediate_size, "experts": spec.moe_intermediate_size}
    slots, chosen = (experts, top_k) if name == "experts" else (1, 1)
    blocks = most_blocks(tokens * chosen, slots, BLOCK)
    return DeviceBranch(
        DeviceRows(memory, tokens * chosen, sizes[name], forms),
        memory.empty((blocks * BLOCK,), torch.int32),
        memory.empty((blocks,), torch.int32),
        chosen,
    )
