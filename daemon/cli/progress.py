"""How far a load has come: a bar in a terminal, else a line in the log for each stage."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from ...experts.progress import Progress
from .output import err

logger = logging.getLogger(__name__)


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """A `report(stage, done, total)` that shows a bar for each stage on the standard error."""
    if not err.is_terminal:
        yield stage_lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Bars(*columns, console=err, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                for earlier in bars.tasks:
                    bars.update(earlier.id, completed=earlier.total)
                tasks[stage] = bars.add_task(stage)
            bars.update(tasks[stage], completed=done, total=total)

        yield report


def stage_lines() -> Progress:
    """A `report` that logs each stage once."""
    seen: set[str] = set()

    def report(stage: str, done: int, total: int) -> None:
        if stage not in seen:
            seen.add(stage)
            logger.info("%s", stage)

    return report


def both(one: Progress, other: Progress) -> Progress:
    """A `report` to two."""

    def report(stage: str, done: int, total: int) -> None:
        one(stage, done, total)
        other(stage, done, total)

    return report
