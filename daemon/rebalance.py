"""Rebalance: what operators ask of the engine about where experts lie."""

from dataclasses import dataclass

from .messages import Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance(Command):
    """Begin the swaps that pay now, or, back, take the last round of them back. dry_run: only say what would be done.
    automatic: from now on rounds are begun without being asked for, or no longer; None leaves it."""

    dry_run: bool = True
    back: bool = False
    automatic: bool | None = None
