import pytest
from isotherm.daemon.budget import FLOOR, StepBudget


def test_without_decoders_a_step_is_as_large_as_allowed() -> None:
    budget = StepBudget(target_s=0.1, max_tokens=512)
    budget.observe(512, 0, 100.0)
    assert budget.prefill_tokens(0) == 512


def test_before_any_prefill_was_seen_chunks_are_small() -> None:
    assert StepBudget(target_s=0.1, max_tokens=512).prefill_tokens(1) == FLOOR


def test_a_chunk_fills_the_time_that_the_decoders_leave() -> None:
    budget = StepBudget(target_s=0.1, max_tokens=512)
    budget.observe(0, 4, 0.036)
    budget.observe(100, 0, 0.1)
    assert budget.prefill_tokens(4) == 64  # (100 - 36) ms at 1 ms a token


def test_a_slow_machine_still_gets_the_floor() -> None:
    budget = StepBudget(target_s=0.1, max_tokens=512)
    budget.observe(0, 4, 0.5)
    budget.observe(100, 0, 100.0)
    assert budget.prefill_tokens(4) == FLOOR


def test_prefill_that_seemed_to_take_no_time_gets_the_floor_where_decoding_alone_is_too_slow() -> None:
    budget = StepBudget(target_s=0.1, max_tokens=512)
    budget.observe(0, 4, 0.5)
    budget.observe(16, 4, 0.4)
    assert budget.prefill_tokens(4) == FLOOR


def test_the_floor_does_not_exceed_the_limit() -> None:
    assert StepBudget(target_s=0.1, max_tokens=4).prefill_tokens(1) == 4


def test_a_fast_machine_gets_the_limit() -> None:
    budget = StepBudget(target_s=0.1, max_tokens=500)
    budget.observe(500, 0, 0.001)
    assert budget.prefill_tokens(1) == 500


def test_a_mixed_step_charges_prefill_with_what_decoding_does_not_take() -> None:
    budget = StepBudget(target_s=0.1, max_tokens=512)
    budget.observe(0, 2, 0.02)
    budget.observe(40, 2, 0.06)
    assert budget.seconds_per_prefill_token == pytest.approx(0.001)


def test_an_outlier_is_forgotten() -> None:
    budget = StepBudget(target_s=0.1, max_tokens=512)
    budget.observe(100, 0, 60.0)  # a first step that compiles
    for _ in range(60):
        budget.observe(100, 0, 0.1)
    assert budget.seconds_per_prefill_token == pytest.approx(0.001, rel=0.01)


def test_the_prefill_rate_includes_the_time_of_decode_steps() -> None:
    budget = StepBudget(target_s=0.1, max_tokens=512)
    assert budget.prefill_rate is None
    budget.observe(100, 0, 1.0)
    assert budget.prefill_rate == pytest.approx(100.0)
    budget.observe(0, 1, 1.0)
    assert budget.prefill_rate == pytest.approx(50.0, rel=0.02)


@pytest.mark.parametrize(("target_s", "max_tokens"), [(0.0, 1), (float("nan"), 1), (0.1, 0)])
def test_an_impossible_budget_is_refused(target_s: float, max_tokens: int) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        StepBudget(target_s, max_tokens)
