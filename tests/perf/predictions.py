"""What `isotherm plan` promises beside what `isotherm bench` measures, as a table in Markdown.

python tests/perf/predictions.py MODEL...: it calibrates first where no profile is kept that has all kinds of weights,
so let nothing else run on the machine. Each plan is made with the routing of the tokens that were measured. Where
others use the machine's memory its speed changes within seconds, so bench's medians are of the runs that met it as fast
as the calibration did. The figure in brackets is the median of all.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isotherm.daemon.calibrate import this_machine
from isotherm.experts.outline import outline

ROUNDS, STREAMS, GEN, PROMPT, SHORT, LONG = 5, (1, 4, 8), 32, 512, 128, 4096


@dataclass(frozen=True, slots=True)
class Case:
    """tokens/s: predicted with its interval, and measured, as bench says it; the median of all runs, and how many
    counted."""

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


def cases_of(model: str) -> Iterator[Case]:
    name = Path(model).stem
    with tempfile.TemporaryDirectory() as folder:
        for context in (SHORT, LONG):
            trace = str(Path(folder) / f"{context}.trace")
            wanted = ("--streams", ",".join(map(str, STREAMS)), "--context", str(context), "--prompt", str(PROMPT))
            found = isotherm("bench", model, *wanted, "--rounds", str(ROUNDS), "--gen", str(GEN), "--trace", trace)
            for streams in STREAMS:
                traffic = ("--streams", str(streams), "--context", str(context + GEN // 2))
                plan = isotherm("plan", model, *traffic, "--trace", trace)
                work = f"decode of {streams} stream{'' if streams == 1 else 's'}"
                measured = found["streams"][str(streams)]["decode_tok_s"]
                yield _case(name, work, f" after {context}", plan["predicted_decode_tok_s"], measured, found)
            if context == SHORT:
                plan = isotherm("plan", model, "--trace", trace)
                measured = found["prefill_tok_s"]
                yield _case(name, "prefill", f" of {PROMPT}", plan["predicted_prefill_tok_s"], measured, found)


def _case(name: str, work: str, more: str, predicted: dict[str, float], measured: float, found: Any) -> Case:
    return Case(name, work + more, predicted, measured, found["of_all"][work], found["counted"][work])


def main(models: Sequence[str]) -> None:
    kinds = dict.fromkeys(kind for model in models for kind in outline(model, "int16").kinds)
    cpu = this_machine(tuple(kinds), None, lambda *_: None).cpu
    reads = cpu.read_gb_s[cpu.threads]
    print(f"plain reads: {reads.value:.1f} GB/s, spread {reads.spread:.0%}\n")
    print("| model | work | predicted | measured | error | within | runs |\n|---|---|---|---|---|---|---|")
    cases = []
    for model in models:
        for case in cases_of(model):
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
