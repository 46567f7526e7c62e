"""Fits recover the terms that synthetic times were made of."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isotherm.placement.fit import (
    ExpertTimes,
    Plain,
    ProductTimes,
    estimate,
    fit_experts,
    fit_product,
    fit_reading,
    fit_terms,
)
from isotherm.placement.hardware import BLOCKS, MOST_SPREAD, Estimate, ProductCost

NEAR = {1: 8.0, 2: 12.0, 4: 21.0, 8: 40.0}


def times_of(read_gb_s: float, overlap: float, near: dict[int, float] = NEAR) -> ProductTimes:
    cost = ProductCost(
        read_gb_s=Estimate(read_gb_s),
        block_ns_per_kib=tuple(Estimate(near[n]) for n in BLOCKS),
        overlap=Estimate(overlap),
    )
    return ProductTimes({n: cost.us(1024, n) * 1e3 for n in BLOCKS}, near, Plain((read_gb_s,)))


@settings(max_examples=25)
@given(read=st.floats(20, 60), overlap=st.floats(0, 1))
def test_reading_and_overlap_are_told_apart(read: float, overlap: float) -> None:
    fitted = fit_reading(times_of(read, overlap))
    assert fitted == pytest.approx((read, overlap), rel=0.02, abs=0.02)


@pytest.mark.parametrize("overlap", [0.0, 0.5, 1.0])
def test_times_come_out_as_they_were_where_computing_is_always_longer(overlap: float) -> None:
    times = times_of(40, overlap, {n: 10 * ns for n, ns in NEAR.items()})
    cost = fit_product([times], times.plain.gb_s)
    for tokens in BLOCKS:
        assert cost.us(1024, tokens) * 1e3 == pytest.approx(times.far[tokens], rel=0.01)


def test_one_disturbed_round_of_five_moves_no_median() -> None:
    calm, disturbed = times_of(40, 0.8), times_of(10, 0.8, {n: 5 * ns for n, ns in NEAR.items()})
    cost = fit_product([calm, calm, disturbed, calm, calm], 40)
    assert cost.read_gb_s.value == pytest.approx(40, rel=0.01)
    assert [each.value for each in cost.block_ns_per_kib] == list(NEAR.values())


def test_the_spread_is_the_standard_deviation_of_normal_samples() -> None:
    samples = np.random.default_rng(1).normal(50, 5, 10_000)
    assert estimate(samples.tolist()).value == pytest.approx(50, rel=0.01)
    assert estimate(samples.tolist()).spread == pytest.approx(0.1, rel=0.05)


def test_what_is_always_the_same_has_no_spread() -> None:
    assert estimate([3.0, 3.0, 3.0]) == Estimate(3.0, 0.0)
    assert estimate([0.0, 0.0, 0.0]) == Estimate(0.0, 0.0)


def test_what_varies_beyond_all_measure_can_still_be_written() -> None:
    assert estimate([1.0, 1.0, 1e6]).spread == MOST_SPREAD


@pytest.mark.parametrize(("call", "expert"), [(6.0, 0.8), (0.0, 1.5), (9.0, 0.0)])
def test_call_and_expert_are_told_apart_from_products(call: float, expert: float) -> None:
    us = {n: call + n * (expert + 0.9) for n in (1, 2, 4, 8, 16, 32)}
    assert fit_experts(ExpertTimes(900.0, us)) == pytest.approx((call, expert), abs=1e-6)


def test_experts_that_take_less_than_their_products_are_free() -> None:
    us = {n: 2 + n * 0.5 for n in (1, 2, 4, 8, 16, 32)}
    _, expert = fit_experts(ExpertTimes(900.0, us))
    assert expert == 0


def test_terms_are_weighed_by_what_a_whole_takes() -> None:
    counts = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    times = np.array([10.0, 100.0, 121.0])  # which does not add up
    fitted = fit_terms(counts, times, np.array([1e-3, 1.0, 1.0]))
    assert fitted[0] == pytest.approx(10, abs=0.01)  # the first is compared with the least
    assert 100 < fitted[1] < 111
