"""Two plans laid side by side."""

from dataclasses import replace

import pytest
from isotherm.placement.plan import LayerPlan, PlanError, Rate
from isotherm.placement.plan_diff import Change, Move, compare
from support.plans import GIB, large, plan_of


def test_equal_plans_differ_in_nothing() -> None:
    assert compare(plan_of([2 * GIB]), plan_of([2 * GIB])).nothing


def test_what_moves_is_counted_by_kind_and_way() -> None:
    before = plan_of()
    layers = (LayerPlan(0, (0, 0, -1, -1, -1, -1, -1, -1)), before.layers[1], LayerPlan(-1, (-1,) * 7 + (0,)))
    after = replace(before, layers=(*layers, before.layers[3]), head=0)
    assert compare(before, after).moves == (
        Move("dense weights", 1, "the CPU", "gpu0", (0,)),
        Move("experts", 3, "the CPU", "gpu0", (0, 2)),
        Move("head", 1, "the CPU", "gpu0", ()),
    )


def test_what_was_asked_for_and_what_comes_of_it_are_told_apart() -> None:
    before = plan_of([2 * GIB])
    found = compare(before, plan_of([3 * GIB]))
    assert found.asked == (Change("budget of gpu0", "2.00 GiB", "3.00 GiB"),)
    changed = [change.what for change in found.changes]
    assert {"decode", "experts on gpu0", "experts on ram"} <= set(changed)
    assert all(move.after == "gpu0" for move in found.moves)


def test_a_rate_is_told_with_its_interval() -> None:
    before = plan_of()
    after = replace(before, predicted_decode_tok_s=Rate(20.0, 18.0, 22.5))
    (change,) = compare(before, after).changes
    assert (change.what, change.after) == ("decode", "20.0 tokens/s (18.0 to 22.5)")


def test_plans_of_other_models_are_refused() -> None:
    with pytest.raises(PlanError, match="other layers or experts"):
        compare(plan_of(), plan_of(shape=large(5)))
