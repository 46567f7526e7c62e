"""The check of a tile kernel against its definition: right ones pass on every tier, wrong ones are told apart."""

import numpy as np
import pytest
from isotherm.cpu_kernels.features import host_tier, target_features, tiers_of
from isotherm.cpu_kernels.jit import PRODUCT_SIGNATURE, address_of, passing_kernel
from isotherm.cpu_kernels.layout import KINDS
from isotherm.cpu_kernels.memory import read_i64, write_i64
from isotherm.cpu_kernels.tiles import PRODUCTS, READERS
from isotherm.cpu_kernels.tiles.check import fault_on
from isotherm.cpu_kernels.tiles.choice import TileKernel, TileKernels, tile_kernel
from isotherm.cpu_kernels.tiles.dot import dot_tile
from support.matrices import random_matrix

SOME_KINDS = ["bf16", "q4k", "q6k", "mx4"]  # every tier of all would be many compilations
NARROWER = [tier.name for tier in tiers_of(target_features())[1:]]
PARTS = ["product", "reader"]


def tile_of(kind: str) -> np.ndarray:
    return random_matrix(kind, 32, 700).tiles[1]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_best_tier_passes(kind, part):
    assert fault_on(tile_kernel(part, kind, host_tier()), tile_of(kind)) is None


@pytest.mark.parametrize("name", NARROWER)
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("kind", SOME_KINDS)
def test_narrower_tiers_pass_in_the_same_process(kind, part, name):
    (tier,) = (tier for tier in tiers_of(target_features()) if tier.name == name)
    kernel = tile_kernel(part, kind, tier)
    assert kernel.address != tile_kernel(part, kind, host_tier()).address
    assert fault_on(kernel, tile_of(kind)) is None


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("kind, other", [("q4", "iq4"), ("iq4", "mx4"), ("f16", "bf16")])
def test_another_kinds_kernel_is_found_wrong(kind, other, part, monkeypatch):
    kernels = PRODUCTS if part == "product" else READERS
    monkeypatch.setitem(kernels, kind, kernels[other])
    assert "is off by" in fault_on(tile_kernel(part, kind, host_tier()), tile_of(kind))


@pytest.mark.parametrize("wrong", [1, 2, 4, 8])
def test_a_product_that_is_wrong_for_some_numbers_of_tokens_is_found(wrong):
    dot = dot_tile("q4")

    @passing_kernel
    def product(count, w, spans, rows, out, stride):
        dot(count, w, spans, rows, out, stride)
        if count == wrong:
            write_i64(out, 0)

    kernel = TileKernel("product", "q4", host_tier(), address_of(product, PRODUCT_SIGNATURE), product)
    assert f"for {wrong} tokens it is off" in fault_on(kernel, tile_of("q4"))


def test_a_product_whose_bits_depend_on_the_number_of_tokens_is_found():
    """The last bit of one result."""
    dot = dot_tile("q4")

    @passing_kernel
    def product(count, w, spans, rows, out, stride):
        dot(count, w, spans, rows, out, stride)
        if count == 2:
            write_i64(out, read_i64(out) ^ 1)

    kernel = TileKernel("product", "q4", host_tier(), address_of(product, PRODUCT_SIGNATURE), product)
    assert fault_on(kernel, tile_of("q4")) == "2 tokens give other bits than 8"


def test_rows_of_weights_that_are_not_finite_are_left_out():
    tile = tile_of("f16")
    tile.view(np.float16)[0, 5] = np.inf
    for part in PARTS:
        assert fault_on(tile_kernel(part, "f16", host_tier()), tile) is None


def test_what_was_not_chosen_is_the_best_tiers():
    kernels = TileKernels()
    assert kernels.product("q4") == tile_kernel("product", "q4", host_tier()).address
    assert kernels.reader("q4") == tile_kernel("reader", "q4", host_tier()).address
    assert kernels.replaced == {}
