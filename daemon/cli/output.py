"""What commands say, and the exit code of each way to fail."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import NoReturn

import typer
from rich.console import Console, RenderableType

from ...experts.errors import ModelError
from ...placement.hardware_file import HardwareError
from ..config import ConfigError
from ..memory import MemoryPlanError

out = Console()
err = Console(stderr=True)
_WIDE = 200


class ExitCode(IntEnum):
    """Exit codes. 2 is also what a wrong command line gives; stopped while loading gives 128 + the signal."""

    FAILURE = 1
    USAGE = 2
    MODEL = 3
    MEMORY = 4
    ADDRESS = 5
    NO_DAEMON = 6
    ENGINE = 7
    FORCED = 8

    @property
    def cause(self) -> str:
        """In words, for the log, help and docs."""
        return _CAUSES[self]


_CAUSES = {
    ExitCode.FAILURE: "another failure, such as a folder that cannot be written or a refused question",
    ExitCode.USAGE: "a wrong setting, or a trace, plan or profile that cannot be used",
    ExitCode.MODEL: "the model cannot be served",
    ExitCode.MEMORY: "it does not fit into memory",
    ExitCode.ADDRESS: "the address cannot be listened on",
    ExitCode.NO_DAEMON: "no daemon answers",
    ExitCode.ENGINE: "the engine failed",
    ExitCode.FORCED: "a second signal cut open requests off",
}
NO_RESTART = (ExitCode.USAGE, ExitCode.MODEL, ExitCode.MEMORY)  # what another start does not mend


def show(part: RenderableType) -> None:
    """Print a table: as wide as the terminal, else in whole lines, which whoever reads a pipe wants."""
    if out.is_terminal:
        out.print(part, highlight=False)
        return
    text = io.StringIO()
    Console(file=text, width=_WIDE, color_system=None).print(part, highlight=False)
    for line in text.getvalue().splitlines():
        out.out(line.rstrip(), highlight=False)


def plus_minus() -> str:
    """The sign before a spread, in what the terminal can show."""
    return "+-" if out.options.ascii_only else "±"


def fail(message: str, code: ExitCode) -> NoReturn:
    """Say in one line what is wrong on the standard error and exit."""
    err.print(f"isotherm: {' '.join(message.splitlines())}", style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(code)


@contextmanager
def refusals() -> Iterator[None]:
    """Exit in one line where a setting, the model or the memory is refused."""
    try:
        yield
    except (ConfigError, HardwareError) as error:
        fail(str(error), ExitCode.USAGE)
    except ModelError as error:
        fail(str(error), ExitCode.MODEL)
    except MemoryPlanError as error:
        fail(str(error), ExitCode.MEMORY)
    except ValueError as error:
        code = _placement_code(error)
        if code is None:
            raise
        fail(str(error), code)


def _placement_code(error: ValueError) -> ExitCode | None:
    """The exit code of an error of placement; None for another."""
    # Imported only here: it takes long, and help is to come at once.
    from ...placement.device_cost import UnknownKindError
    from ...placement.plan import PlanError
    from ...placement.room import FitError
    from ...placement.trace import TraceError

    if isinstance(error, FitError):
        return ExitCode.MEMORY
    return ExitCode.USAGE if isinstance(error, PlanError | TraceError | UnknownKindError) else None
