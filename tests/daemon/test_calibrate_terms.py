"""Terms of the CPU's profile: recovered from times that the cost model makes of known ones."""

from dataclasses import replace
from typing import Any

import pytest
from isotherm.daemon.calibrate_decoders import DecoderTimes, KvTimes
from isotherm.daemon.calibrate_terms import Round, cpu_profile
from isotherm.placement.fit import Plain
from isotherm.placement.hardware import CpuProfile, Estimate
from support.machine_terms import GOPS, KV, MACHINE, PLAIN, SHAPES, known, measured


def solve(*rounds: Round) -> CpuProfile:
    return cpu_profile(MACHINE, rounds, SHAPES)


@pytest.mark.parametrize(
    "changes", [{}, {"op_us": 0.2}, {"step_us": 5.0}, {"token_ns_per_value": 0.5}, {"op_us": 4.0, "step_us": 400.0}]
)
def test_known_terms_are_recovered(changes: dict[str, float]) -> None:
    truth = known(**changes)
    solved = solve(measured(truth))
    for name in ("op_us", "step_us", "token_ns_per_value", "call_us", "expert_us"):
        assert getattr(solved, name).value == pytest.approx(getattr(truth, name).value, rel=0.03, abs=0.05), name
    assert solved.products["q4"].read_gb_s.value == pytest.approx(36, rel=0.01)
    assert solved.kv_gb_s["int16"].value == pytest.approx(KV)
    assert solved.attention_gops["int16"].value == pytest.approx(GOPS)


def test_rounds_give_the_median_and_its_spread() -> None:
    solved = solve(*(measured(known(step_us=us)) for us in (30.0, 40.0, 50.0, 60.0, 70.0)))
    assert solved.step_us.value == pytest.approx(50, rel=0.02)
    assert 0.2 < solved.step_us.spread < 0.4
    assert solved.products["q4"].read_gb_s.spread == 0


def slowed(to: float) -> Round:
    """Measured while others left so much of the memory's speed, of that of `known`."""
    calm = known()
    cost, kv = calm.products["q4"], calm.kv_gb_s["int16"]
    slow = replace(cost, read_gb_s=Estimate(to * cost.read_gb_s.value))
    found = measured(replace(calm, products={"q4": slow}, kv_gb_s={"int16": Estimate(to * kv.value)}))
    plain = Plain((to * PLAIN,))
    return replace(
        found,
        products={"q4": replace(found.products["q4"], plain=plain)},
        decoders=replace(found.decoders, kv={"int16": replace(found.decoders.kv["int16"], plain=plain)}),
    )


def test_what_comes_from_memory_is_a_share_of_its_usual_speed() -> None:
    solved = solve(*map(slowed, (0.6, 0.6, 1.0, 1.0, 1.0)))
    plain = solved.read_gb_s[MACHINE.threads]
    assert plain.value == PLAIN and plain.spread > 0.1
    assert solved.products["q4"].read_gb_s == Estimate(pytest.approx(36, rel=0.01), plain.spread)
    assert solved.kv_gb_s["int16"] == Estimate(pytest.approx(KV), plain.spread)
    mostly_slow = solve(*map(slowed, (0.6, 0.6, 0.6, 1.0, 1.0)))
    assert mostly_slow.products["q4"].read_gb_s.value == pytest.approx(0.6 * 36, rel=0.01)
    assert mostly_slow.kv_gb_s["int16"].value == pytest.approx(0.6 * KV)


def test_rounds_in_which_the_memorys_speed_changed_do_not_count() -> None:
    calm, torn = slowed(1.0), slowed(0.6)
    both = Plain((0.6 * PLAIN, PLAIN, PLAIN))  # slow while the product was measured, and not while plain reads were
    torn = replace(
        torn,
        products={"q4": replace(torn.products["q4"], plain=both)},
        decoders=replace(torn.decoders, kv={"int16": replace(torn.decoders.kv["int16"], plain=both)}),
    )
    solved = solve(calm, torn, torn, torn, calm, torn, calm)
    assert solved.products["q4"].read_gb_s.value == pytest.approx(36, rel=0.01)
    assert solved.kv_gb_s["int16"].value == pytest.approx(KV)


def test_what_was_disturbed_gives_numbers_that_can_be_used() -> None:
    calm = measured(known())
    kv = KvTimes(short=900.0, long=800.0, first=7000.0, later=6000.0, plain=Plain((PLAIN,)))
    times: dict[str, Any] = {"one_layer": 1.0, "layers": 0.5, "prompt": 1.0, "kv": {"int16": kv}}
    solved = solve(replace(calm, decoders=DecoderTimes(**times)))
    assert (solved.op_us.value, solved.token_ns_per_value.value) == (0, 0)
    assert solved.kv_gb_s["int16"].value > 0
    assert solved.attention_gops["int16"].value > 0


def test_the_machine_is_named() -> None:
    solved = solve(measured(known()))
    assert (solved.name, solved.tier, solved.threads, solved.cores) == ("made up", "avx2", 2, 2)
    assert (solved.ram_bytes, solved.free_bytes) == (1 << 34, 1 << 33)
