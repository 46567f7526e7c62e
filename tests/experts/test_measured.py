"""Parts of a layer to be measured: they compute what a layer computes, on weights that are there as often as said."""

import numpy as np
import pytest
from isotherm.cpu_kernels.layout import KINDS, packed_bytes
from isotherm.cpu_kernels.seating import Seating
from isotherm.cpu_kernels.team import Team
from isotherm.experts import measured, random_model
from isotherm.experts.formats import FORMATS
from isotherm.experts.measured import TOUCHED, MeasuredExperts, MeasuredProducts
from isotherm.experts.random_decoder import ROUTER_KIND, first_layers, random_decoder, small_spec
from isotherm.experts.random_model import random_slots
from support.machines import nodes_here

SEATING = Seating(2)


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "FAR", 1 << 18)
    monkeypatch.setattr(measured, "_NEAR", 1 << 16)


def addresses(part: measured.Measured) -> set[int]:
    return {matrix.address for matrix in part._ops._weights.matrices.values()}


def test_products_from_memory_are_all_different_ones() -> None:
    far = MeasuredProducts("q4", 64, 64, 2, SEATING, far=True)
    assert len(addresses(far)) == 3 * far.layers
    assert far.nbytes == 3 * far.layers * packed_bytes("q4", 64, 64) >= measured.FAR


def test_products_in_cache_are_the_same_ones_again() -> None:
    near = MeasuredProducts("q4", 64, 64, 2, SEATING, far=False)
    assert len(addresses(near)) == 3
    assert near.layers > 1


def test_experts_from_memory_are_more_than_a_run_touches() -> None:
    far = MeasuredExperts.from_memory("q4", (64, 64), SEATING)
    assert far.experts >= 2 * TOUCHED
    assert far.experts * far.layers * far.expert_bytes >= measured.FAR


@pytest.mark.parametrize(("first", "count", "tokens"), [(0, 1, 1), (6, 4, 2), (7, 8, 8)])
def test_routes_touch_the_next_experts(first: int, count: int, tokens: int) -> None:
    experts = MeasuredExperts("q4", 8, (64, 64), SEATING, far=False)
    experts.route(first, count, tokens)
    team = Team(SEATING)
    try:
        team.run(experts.program, experts.counts)
    finally:
        team.close()
    routes = experts._ops.buffers.branches["experts"].routes
    active = routes.active[: routes.num_active[0]]
    assert sorted(active.tolist()) == sorted((first + i) % 8 for i in range(count))
    assert np.diff(routes.offsets)[active].tolist() == [tokens] * count


def test_a_random_decoder_has_weights_of_one_kind_and_even_routers() -> None:
    spec = small_spec(64)
    weights = random_decoder(spec, "q5", SEATING)
    kinds = {role: matrix.kind for role, matrix in weights.matrices.items()}
    assert {kind for role, kind in kinds.items() if role.endswith("router")} == {ROUTER_KIND}
    assert {kind for role, kind in kinds.items() if not role.endswith("router")} == {"q5"}
    assert first_layers(spec, 1).moe_layers == (True,)


def test_every_kind_finds_a_format_that_keeps_its_numbers() -> None:
    for kind in KINDS:
        (slot,) = random_slots({"q": (64, 64)}, lambda _, kind=kind: kind)
        assert FORMATS[slot.format].packed == kind


def test_each_memory_node_gets_a_share_of_every_matrix() -> None:
    seating = Seating(2, nodes_here(2))
    weights = random_model.random_model({"q": (256, 64), "n": (64,)}, lambda _: "q8", seating)
    shards = weights.matrices["q"].shards
    assert [shard.node for shard in shards] == [0, 1]
    half = weights.nbytes // 2
    assert (weights.arena[:half][: shards[0].tiles] == weights.arena[half:][: shards[1].tiles]).all()
    assert (weights.vectors["n"] == 1).all()
