"""Which runs of a bench count. Where others share the machine, its memory is faster or slower for seconds or minutes;
so plain reads stand beside each run, and those count that met memory as fast as it usually is."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

LIKE = 0.15  # how far plain reads may be from the usual ones
FEWEST = 3  # or half of the rounds: a median of less is none


@dataclass(frozen=True, slots=True)
class Run:
    """tok_s: of what `work` names in one round. read_gb_s: plain reads of the same threads just before and just after
    it."""

    work: str
    tok_s: float
    read_gb_s: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Usual:
    """gb_s: plain reads around runs that count. calibrated: it is what `isotherm calibrate` found, and plans go by;
    else the median of the bench's own."""

    gb_s: float
    calibrated: bool

    def is_met(self, run: Run) -> bool:
        return all(abs(read / self.gb_s - 1) < LIKE for read in run.read_gb_s)


def usual_reads(calibrated_gb_s: float | None, runs: Sequence[Run]) -> Usual:
    """calibrated_gb_s: None if the machine never was."""
    if calibrated_gb_s is not None:
        return Usual(calibrated_gb_s, True)
    return Usual(median(read for run in runs for read in run.read_gb_s), False)


def counted(runs: Sequence[Run], usual: Usual, rounds: int) -> dict[str, int]:
    """By what was measured, how many runs count; 0 where too few do. rounds: so many were wanted."""
    numbers = {work: sum(usual.is_met(run) for run in runs if run.work == work) for work in works(runs)}
    return {work: number if number >= min(FEWEST, (rounds + 1) // 2) else 0 for work, number in numbers.items()}


def rates(runs: Sequence[Run], usual: Usual | None = None) -> dict[str, float]:
    """Tokens/s: medians of all runs by what was measured, or of those that count."""
    return {
        work: median(run.tok_s for run in runs if run.work == work and (usual is None or usual.is_met(run)))
        for work in works(runs)
        if usual is None or any(run.work == work and usual.is_met(run) for run in runs)
    }


def works(runs: Sequence[Run]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(run.work for run in runs))
