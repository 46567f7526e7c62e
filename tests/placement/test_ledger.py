"""The ledger against sums by hand, and its activations against the engine's own buffers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from isotherm.experts.buffers import Buffers
from isotherm.experts.model import open_model
from isotherm.experts.outline import shape_of
from isotherm.experts.step_inputs import StepLimits
from isotherm.placement.ledger import (
    CONTEXT_BYTES,
    HEADROOM_BYTES,
    Load,
    Overheads,
    activation_bytes,
    draw_up,
    kv_positions,
    kv_staging_blocks,
    kv_staging_bytes,
)
from isotherm.placement.placed import Placement
from isotherm.placement.shape import CPU
from support.plans import GIB, MIB, large
from support.tiny import write_blank_gguf

OVERHEADS = Overheads(runtime=512 * MIB, activations=32 * MIB, staging=(64 * MIB,), pinned=8 * MIB)


def placed(experts_on_card: int) -> Placement:
    """Two of four layers' dense parts, and so many of each layer's experts, on a card."""
    experts = np.array([0] * experts_on_card + [CPU] * (8 - experts_on_card), np.int8)
    return Placement(dense=(0, 0, CPU, CPU), experts=(experts,) * 4, embed=CPU, head=0)


def test_every_term_is_named_and_counted_where_it_lies() -> None:
    load = Load(shape=replace(large(), vector_bytes=MIB), placement=placed(3), positions=2048)
    ram, card = draw_up(load, OVERHEADS, 16 * GIB, (8 * GIB,))
    assert {term.name: term.nbytes / MIB for term in card.terms} == {
        "dense weights": 2 * 64 + 1,
        "experts": 4 * 3 * 96,
        "head": 64,
        "KV cache": 2 * 8,
        "prefill staging": 64,
        "activations": 32,
        "accelerator context": CONTEXT_BYTES / MIB,
        "headroom": HEADROOM_BYTES / MIB,
    }
    assert {term.name: term.nbytes / MIB for term in ram.terms} == {
        "dense weights": 2 * 64,
        "experts": 4 * 5 * 96,
        "embedding": 64,
        "KV cache": 2 * 8,
        "activations": 32,
        "pinned host buffers": 8,
        "Python and compiled kernels": 480,
    }
    assert (card.device, card.total, card.free) == ("gpu0", card.budget - card.free, 8 * GIB - card.total)


def test_offloaded_keys_and_values_take_ram_in_every_layer_and_a_way_on_the_card() -> None:
    load, offload = Load(shape=large(), placement=placed(3), positions=2048), 3 * 2048 * large().kv_bytes
    overheads = replace(OVERHEADS, kv_offload=offload, kv_staging=24 * MIB)
    ram, card = draw_up(load, overheads, 16 * GIB, (8 * GIB,))
    plain_ram, plain_card = draw_up(load, OVERHEADS, 16 * GIB, (8 * GIB,))
    assert ram.of("KV cache") + ram.of("KV offload") == offload
    assert ram.total - plain_ram.total == offload - plain_ram.of("KV cache")
    assert card.total - plain_card.total == card.of("KV staging") == 24 * MIB
    assert overheads.of_ram - OVERHEADS.of_ram == offload


@pytest.mark.parametrize("own", [1, 3000, 16 * MIB, 40 * MIB])
@pytest.mark.parametrize("others", [0, 100 * MIB])
def test_blocks_on_their_way_take_no_more_than_a_plan_keeps_for_them(own: int, others: int) -> None:
    blocks = kv_staging_blocks(own)
    assert blocks >= 1 and 2 * blocks * (own + 8) <= kv_staging_bytes(own + others)


def test_an_embedding_that_is_the_head_is_there_once_unless_they_lie_apart() -> None:
    shape = replace(large(), tied=True)
    together, apart = Placement.on_cpu(shape), replace(Placement.on_cpu(shape), head=0)
    (ram,) = draw_up(Load(shape=shape, placement=together, positions=16), OVERHEADS, GIB, ())
    assert (ram.of("embedding"), ram.of("head")) == (64 * MIB, 0)
    ram, card = draw_up(Load(shape=shape, placement=apart, positions=16), OVERHEADS, GIB, (GIB,))
    assert (ram.of("embedding"), card.of("head")) == (64 * MIB, 64 * MIB)


def test_experts_that_are_read_from_disk_take_no_memory() -> None:
    load = Load(shape=large(), placement=placed(3), positions=16, from_disk=(5, 2, 0, 0))
    ram, card = draw_up(load, OVERHEADS, 16 * GIB, (8 * GIB,))
    assert (ram.of("experts"), card.of("experts")) == ((20 - 7) * 96 * MIB, 12 * 96 * MIB)


def test_a_card_that_is_left_out_needs_nothing() -> None:
    _, card = draw_up(Load(shape=large(), placement=Placement.on_cpu(large()), positions=16), OVERHEADS, GIB, (0,))
    assert (card.terms, card.free) == ((), 0)


@pytest.mark.parametrize(("context", "positions"), [(1, 16), (16, 16), (17, 32), (4096, 4096)])
def test_the_cache_is_counted_in_whole_pages_of_each_stream(context: int, positions: int) -> None:
    assert kv_positions(large(), 3, context) == 3 * positions


@pytest.mark.parametrize("architecture", ["llama", "qwen2_moe", "qwen3_moe"])
def test_activations_are_those_of_the_engine(tmp_path: Path, architecture: str) -> None:
    write_blank_gguf(tmp_path / "tiny.gguf", architecture, "Q4_0")
    model = open_model(tmp_path / "tiny.gguf")
    limits = StepLimits(128, 16, 1)
    buffers = Buffers(model.spec, limits, threads=1)
    theirs = sum(array.nbytes for array in arrays(vars(buffers)) if array.dtype == np.uint8)
    theirs -= sum(
        a.nbytes for a in (buffers.scratch, buffers.down_scratch, buffers.attention_scratch, buffers.partials)
    )
    theirs += buffers.logits.nbytes
    assert activation_bytes(shape_of(model, "int16"), 128, limits.rows) == pytest.approx(theirs, rel=0.02)


def arrays(value: Any) -> list[np.ndarray]:
    """All arrays in dataclasses, mappings and the like."""
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, dict):
        return [array for item in value.values() for array in arrays(item)]
    names = getattr(type(value), "__slots__", ())
    return [array for name in names for array in arrays(getattr(value, name))]
