"""UnusedPrefixes: gives the memory of prefixes back that no request uses now."""

from dataclasses import dataclass

from .attendants import Answers
from .kv_cache import BlockPool
from .messages import Command
from .runner import DecoderRunner
from .step import StepPlan


@dataclass(frozen=True, slots=True)
class DropPrefixes(Command):
    """Forget them, and give their memory back."""


class UnusedPrefixes:
    """An attendant of a runner whose KV cache is in RAM."""

    def __init__(self, pool: BlockPool, runner: DecoderRunner) -> None:
        self._pool, self._runner = pool, runner

    @property
    def commands(self) -> Answers:
        return {DropPrefixes: self._drop}

    def between_steps(self, plan: StepPlan | None) -> float | None:
        return None

    def _drop(self, command: DropPrefixes) -> dict[str, int]:
        found = self._pool.num_cached
        dropped = self._runner.drop_blocks(self._pool.forget_unused())
        return {"forgotten_blocks": found - self._pool.num_cached, "dropped_bytes": dropped}
