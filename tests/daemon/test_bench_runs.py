"""Which runs count, and what is said of it."""

from dataclasses import replace
from io import StringIO

import pytest
from isotherm.daemon.bench import BenchResult
from isotherm.daemon.bench_runs import Run, counted, rates, usual_reads
from isotherm.daemon.cli.bench_tables import model_table
from rich.console import Console

RUNS = (
    Run("prefill", 100.0, (30.0, 31.0)),
    Run("decode", 10.0, (30.0, 60.0)),
    Run("prefill", 300.0, (60.0, 60.0)),
    Run("decode", 20.0, (26.0, 34.0)),
)


def test_both_reads_must_be_as_usual() -> None:
    usual = usual_reads(30.0, RUNS)
    assert [usual.is_met(run) for run in RUNS] == [True, False, False, True]
    assert counted(RUNS, usual, rounds=2) == {"prefill": 1, "decode": 1}
    assert rates(RUNS, usual) == {"prefill": 100.0, "decode": 20.0}


@pytest.mark.parametrize(("rounds", "number"), [(1, 1), (2, 1), (3, 0), (9, 0)])
def test_too_few_runs_are_none(rounds: int, number: int) -> None:
    assert counted(RUNS, usual_reads(30.0, RUNS), rounds)["decode"] == number


def test_what_no_run_met_has_no_median() -> None:
    assert rates(RUNS, usual_reads(60.0, RUNS)) == {"prefill": 300.0}
    assert rates(RUNS) == {"prefill": 200.0, "decode": 15.0}


RESULT = BenchResult(
    threads=2,
    prefill_tok_s=100.0,
    decode_tok_s=15.0,
    streams={},
    read_gb_s=31.0,
    decode_gb_s=20.0,
    memory_wall_share=0.8,
    load_s=1.0,
    first_token_s=0.5,
    usual_gb_s=30.0,
    calibrated=True,
    counted={"prefill": 2, "decode": 0},
    of_all=rates(RUNS),
    runs=RUNS,
)


def shown(result: BenchResult) -> str:
    console = Console(width=400, file=StringIO())
    with console.capture() as captured:
        console.print(model_table(result, 512))
    return " ".join(captured.get().split())


def test_the_table_says_which_runs_counted_and_what_to_do_where_none_did() -> None:
    said = "medians of 2 of 4 runs, in which memory read at 30.0 GB/s, as when it was calibrated, give or take 15%"
    assert said + "; of all runs for decode; if it always reads at another speed, measure anew: isotherm" in shown(
        RESULT
    )
    of_most = shown(replace(RESULT, calibrated=False))
    assert "as in most of them, give or take 15%; of all runs for decode" in of_most
    assert "isotherm calibrate" not in of_most
    assert shown(replace(RESULT, counted={"prefill": 2, "decode": 2})).endswith("give or take 15%")
