"""Trace files: one .npz without pickled objects; written in one step, read with suspicion."""

from pathlib import Path

from .trace import SAMPLE_TOKENS, RoutingTrace


def save_trace(path: Path, trace: RoutingTrace) -> None:
    """Writes or replaces the file in one step. Raises TraceError for a trace without traffic, OSError as the system does."""
    raise NotImplementedError


def load_trace(path: Path, fingerprint: str | None = None) -> RoutingTrace:
    """The trace in the file. fingerprint: of the model it must belong to.

    Raises TraceError, with the path and the remedy, for a file that is missing, damaged, too large, of another version
    or model, or without traffic.
    """
    raise NotImplementedError


def merge_into(
    path: Path, trace: RoutingTrace, half_life: float | None = None, limit: int = SAMPLE_TOKENS
) -> RoutingTrace:
    """Adds newer traffic to the file, which need not exist, and returns what is in it now (see `trace.appended`).

    Writers take turns by a lock file beside it. A trace without traffic changes nothing. Raises TraceError as
    `load_trace` does, and leaves the file as it is then.
    """
    raise NotImplementedError
