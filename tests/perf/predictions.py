"""What `isotherm plan` promises beside what `isotherm bench` measures, as a table in Markdown.

python tests/perf/predictions.py MODEL...: it calibrates first where no profile is kept that has all kinds of weights,
so let nothing else run on the machine. Each plan is made with the routing of the tokens that were measured. Where
others use the machine's memory its speed changes within seconds: a run counts if plain reads just before and after it
were about as fast as the calibration found them. Where too few were, there are more runs. The figure in brackets is
the median of all.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from isotherm.daemon.calibrate import kinds_of, this_machine
from isotherm.experts.model import open_model

ROUNDS, STREAMS, GEN, PROMPT, SHORT, LONG = 8, (1, 4, 8), 32, 512, 128, 4096
LIKE = 0.15  # how far plain reads may be from the calibration's
FEWEST, TRIES = 3, 4  # runs that count; how often to measure until there are so many


@dataclass(frozen=True, slots=True)
class Case:
    """tokens/s: predicted with its interval, and measured: the median of the runs that count, of all, and how many
    did."""

    model: str
    work: str
    predicted: dict[str, float]
    measured: float
    of_all: float
    counted: int

    @property
    def error(self) -> float:
        return self.predicted["value"] / self.measured - 1

    @property
    def covered(self) -> bool:
        return self.predicted["low"] <= self.measured <= self.predicted["high"]

    @property
    def row(self) -> str:
        low, value, high = (self.predicted[name] for name in ("low", "value", "high"))
        return (
            f"| {self.model} | {self.work} | {value:.1f} ({low:.0f} to {high:.0f}) | {self.measured:.1f} "
            f"({self.of_all:.1f}) | {self.error:+.1%} | {'yes' if self.covered else 'no'} | {self.counted} |"
        )


def isotherm(*arguments: str) -> Any:
    """What a command prints as JSON."""
    command = [sys.executable, "-m", "isotherm.daemon.cli", *arguments, "--json"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def cases_of(model: str, usual_gb_s: float) -> Iterator[Case]:
    name = Path(model).stem
    with tempfile.TemporaryDirectory() as folder:
        for context in (SHORT, LONG):
            trace = str(Path(folder) / f"{context}.trace")
            wanted = ("--streams", ",".join(map(str, STREAMS)), "--context", str(context), "--prompt", str(PROMPT))
            taken = ("--rounds", str(ROUNDS), "--gen", str(GEN), "--no-pack-cache", "--trace", trace)
            runs: list[Any] = []
            for _ in range(TRIES):
                runs += isotherm("bench", model, *wanted, *taken)["runs"]
                if all(len(_alike(runs, work, usual_gb_s)) >= FEWEST for work in {run["work"] for run in runs}):
                    break
            for streams in STREAMS:
                traffic = ("--streams", str(streams), "--context", str(context + GEN // 2))
                plan = isotherm("plan", model, *traffic, "--trace", trace)
                work = f"decode of {streams} stream{'' if streams == 1 else 's'}"
                yield _case(name, work, f" after {context}", plan["predicted_decode_tok_s"], runs, usual_gb_s)
            if context == SHORT:
                plan = isotherm("plan", model, "--trace", trace)
                yield _case(name, "prefill", f" of {PROMPT}", plan["predicted_prefill_tok_s"], runs, usual_gb_s)


def _case(name: str, work: str, more: str, predicted: dict[str, float], runs: Sequence[Any], usual_gb_s: float) -> Case:
    alike = _alike(runs, work, usual_gb_s)
    of_all = median(run["tok_s"] for run in runs if run["work"] == work)
    counts = len(alike) >= FEWEST
    return Case(name, work + more, predicted, median(alike) if counts else of_all, of_all, len(alike) if counts else 0)


def _alike(runs: Sequence[Any], work: str, usual_gb_s: float) -> list[float]:
    """The rates of the runs that count."""
    own = [run for run in runs if run["work"] == work]
    return [run["tok_s"] for run in own if all(abs(read / usual_gb_s - 1) < LIKE for read in run["read_gb_s"])]


def main(models: Sequence[str]) -> None:
    kinds = dict.fromkeys(kind for model in models for kind in kinds_of(open_model(Path(model))))
    cpu = this_machine(tuple(kinds), None, lambda *_: None).cpu
    reads = cpu.read_gb_s[cpu.threads]
    usual_gb_s = reads.value
    print(f"plain reads: {usual_gb_s:.1f} GB/s, spread {reads.spread:.0%}\n")
    print("| model | work | predicted | measured | error | within | runs |\n|---|---|---|---|---|---|---|")
    cases = []
    for model in models:
        for case in cases_of(model, usual_gb_s):
            cases.append(case)
            print(case.row, flush=True)
    for phase, bound in (("decode", 0.1), ("prefill", 0.15)):
        own = [case for case in cases if case.work.startswith(phase)]
        near = sum(abs(case.error) <= bound for case in own)
        print(
            f"\n{phase}: {near} of {len(own)} within {bound:.0%}, {sum(case.covered for case in own)} in the interval"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
