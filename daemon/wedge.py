"""Wedges: telling that an engine will not go on by itself, and what its threads were doing."""

import faulthandler
import logging
from contextlib import suppress

from .engine import Engine

logger = logging.getLogger(__name__)

_STDERR = 2  # where the log goes; written to without a lock that a hanging thread may hold


def ailment_of(engine: Engine, step_limit: float) -> str | None:
    """Why an engine that should serve does not, None if it does. step_limit: seconds that a step may take."""
    stats = engine.stats()
    if stats.state in ("failed", "stopped"):
        return stats.reason or "the engine has stopped"
    if stats.state == "ready" and not engine.alive:
        return "the engine's thread has ended"
    age = stats.step_age()
    return f"a step of the model has been running for {age:.0f} s" if age > step_limit else None


def dump_threads(reason: str) -> None:
    """Write to the log what each thread does."""
    logger.error("%s; all threads follow", reason)
    with suppress(OSError):  # a log that cannot be written must not keep clients from their answers
        faulthandler.dump_traceback(_STDERR, all_threads=True)
