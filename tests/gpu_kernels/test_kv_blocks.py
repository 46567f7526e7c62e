"""Moving blocks of the KV cache between devices."""

import numpy as np
import pytest
import torch
from isotherm.cpu_kernels.kv_layout import KV_KINDS
from isotherm.gpu_kernels.kv_blocks import gather_blocks, scatter_blocks, staging_bytes
from isotherm.gpu_kernels.reference.attention import attend
from support.device_kv import cache_of, empty_cache, heads_of, sequences_of
from support.kv import Cache, random_q, random_table
from support.torch_values import count_of

FROM, TO = torch.tensor([7, 2, 5, 0]), torch.tensor([1, 3, 0, 4])


def random_caches(layers, kv_heads=2, blocks=9, head_dim=24):
    generator = torch.Generator().manual_seed(layers)
    caches = [empty_cache("int16", kv_heads, blocks, head_dim) for _ in range(layers)]
    for cache in caches:
        cache.memory.random_(0, 256, generator=generator)
    return caches


def moved(source, target, blocks=FROM, to=TO):
    """Move blocks by way of a buffer on either side of a link."""
    near = torch.empty(staging_bytes(source, len(blocks)), dtype=torch.uint8)
    far = torch.empty(staging_bytes(source, len(blocks)) + 100, dtype=torch.uint8)
    filled = gather_blocks(source, blocks, near)
    far[: len(filled)].copy_(filled)
    scatter_blocks(target, to, far)


def test_every_layer_of_a_block_arrives_and_no_other_block_changes():
    source, target = random_caches(3), random_caches(3, blocks=6)
    before = [cache.memory.clone() for cache in target]
    moved(source, target)
    for old, here, there in zip(before, source, target, strict=True):
        expected = old.clone()
        for a, b in zip(FROM.tolist(), TO.tolist(), strict=True):
            expected[:, b] = here.memory[:, a]
        assert torch.equal(there.memory, expected)


def test_layers_may_have_parts_of_their_own_size():
    source = [*random_caches(1), *random_caches(2, kv_heads=3, head_dim=64)]
    target = [empty_cache("int16", 2, 6, 24), *(empty_cache("int16", 3, 6, 64) for _ in range(2))]
    moved(source, target)
    for here, there in zip(source, target, strict=True):
        assert torch.equal(there.memory[:, TO], here.memory[:, FROM])


def test_no_blocks_are_no_bytes():
    caches, none = random_caches(2), torch.empty(0, dtype=torch.int64)
    before = [cache.memory.clone() for cache in caches]
    assert len(gather_blocks(caches, none, torch.empty(0, dtype=torch.uint8))) == 0
    scatter_blocks(caches, none, torch.empty(0, dtype=torch.uint8))
    assert all(torch.equal(cache.memory, old) for cache, old in zip(caches, before, strict=True))


@pytest.mark.parametrize("move", [gather_blocks, scatter_blocks])
def test_a_buffer_that_is_too_small_is_refused(move):
    caches = random_caches(2)
    staging = torch.empty(staging_bytes(caches, 4) - 1, dtype=torch.uint8)
    with pytest.raises(ValueError, match="4 KV blocks of 2 layers take"):
        move(caches, FROM, staging)


@pytest.mark.parametrize("kind", KV_KINDS)
def test_a_context_that_was_moved_gives_the_same_bits(kind):
    cache, table = Cache(12, 2, 24, kind), random_table(12, 7)
    q = torch.from_numpy(random_q(3, 4, 24)).flatten(1)
    there = empty_cache(kind, 2, 7, 24)
    here = cache_of(kind, 24, cache.cache)
    moved([here], [there], torch.from_numpy(table), torch.arange(7))
    outputs = []
    for memory, blocks in ((here, table), (there, np.arange(7))):
        out = torch.empty_like(q)
        attend(q, memory, heads_of(4, 2, 24), sequences_of([(np.arange(100, 103), blocks)]), out, count_of(3))
        outputs.append(out)
    assert torch.equal(*outputs)
