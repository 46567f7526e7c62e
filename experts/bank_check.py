"""What must be true of banks: no expert lies twice, tables agree, and memory holds the weights that it should."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from ..gpu_kernels.device import Accelerator
from ..gpu_kernels.tensors import SENTINEL
from ..placement.shape import CPU
from .bank import Bank, parts_of
from .pack import PackedWeights
from .transfer import runs_of


def check_tables(layer: int, where: NDArray[np.int8], banks: Mapping[int, Bank]) -> None:
    """Compare a layer's `where` with its banks by device. Raises RuntimeError."""
    lies = np.full(len(where), CPU, np.int8)
    for device, bank in banks.items():
        for slot, expert in enumerate(bank.experts):
            if expert == SENTINEL:
                continue
            if slot in bank.arriving:
                raise RuntimeError(f"layer {layer}: slot {slot} of accelerator {device} is taken twice")
            if lies[expert] != CPU:
                raise RuntimeError(f"layer {layer}: expert {expert} is resident twice")
            lies[expert] = device
    if not np.array_equal(lies, where):
        raise RuntimeError(f"layer {layer}: experts lie at {lies.tolist()}, but are looked for at {where.tolist()}")


def check_contents(layer: int, bank: Bank, weights: PackedWeights) -> None:
    """Compare a bank's table on the device and the weights in its slots with what the host has. Raises RuntimeError."""
    accelerator, expected = bank.accelerator, np.full(bank.table.numel(), SENTINEL, np.int32)
    for slot, expert in enumerate(bank.experts):
        if expert == SENTINEL:
            continue
        expected[expert] = slot
        for matrix, packed in zip(bank.matrices, parts_of(weights, layer, expert), strict=True):
            found = fetch(accelerator, matrix.tiles[slot]).reshape(-1)
            if not np.array_equal(found, np.concatenate(list(runs_of(weights, packed)))):
                raise RuntimeError(f"layer {layer}: expert {expert} has other weights on {accelerator.name}")
    if not np.array_equal(fetch(accelerator, bank.table), expected):
        raise RuntimeError(f"layer {layer}: {accelerator.name} has another table of slots than the host")


def fetch(accelerator: Accelerator, tensor: torch.Tensor) -> NDArray[np.generic]:
    """What a tensor of the device holds, once all copies to it are done."""
    accelerator.wait("from", accelerator.record("to"))
    host = accelerator.pinned(tuple(tensor.shape), tensor.dtype)
    accelerator.copy(host, tensor, "from")
    accelerator.synchronise(accelerator.record("from"))
    fetched: NDArray[np.generic] = host.numpy()
    return fetched
