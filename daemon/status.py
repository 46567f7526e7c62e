"""EngineStats: a snapshot of the engine that any thread may read."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

EngineState = Literal["starting", "ready", "draining", "failed", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """The engine after its last step. Counters (from `steps` on) count since the start.

    reason: why the state is not "ready", for people. heartbeat: monotonic seconds at which the loop last went round;
    while idle it waits, so its age means something only with `busy`. queued: requests and prompt tokens that have not
    run yet, by tenant. prefill_tokens and decode_tokens were computed, `_rate` is tokens a second of recent steps of
    that phase alone.
    """

    state: EngineState = "starting"
    reason: str = ""
    busy: bool = False
    heartbeat: float = 0.0
    running: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    queued: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    kv_blocks: int = 0
    kv_blocks_free: int = 0
    steps: int = 0
    failed_steps: int = 0
    generated_tokens: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    prefill_rate: float | None = None
    decode_rate: float | None = None
    preemptions: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    audit_failures: int = 0

    @property
    def kv_usage(self) -> float:
        """Share of KV blocks that running requests hold, 0 to 1."""
        return 1.0 - self.kv_blocks_free / self.kv_blocks if self.kv_blocks else 0.0

    def step_age(self, now: float | None = None) -> float:
        """Seconds for which the step under way has run; 0 when idle."""
        return max(0.0, (time.monotonic() if now is None else now) - self.heartbeat) if self.busy else 0.0
