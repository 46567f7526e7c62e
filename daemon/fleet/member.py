"""Member: one model that the daemon knows, whether it is loaded or not; Lease: a request's hold on a loaded one."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from ...experts.progress import Progress

State = Literal["cold", "loading", "ready", "restarting", "leaving", "failed"]


class Loaded(Protocol):
    """A loaded model."""

    @property
    def nbytes(self) -> int:
        """Of memory that closing gives back."""
        ...

    def ailment(self) -> str | None:
        """Why it will not go on by itself, None if it does. Called on the event loop."""
        ...

    def abandon(self, reason: str) -> None:
        """Fail all open requests without waiting for what hangs. Called on the event loop."""
        ...

    def restart(self) -> None:
        """Go on anew after `abandon`. Called in a thread; where it raises, the model is lost."""
        ...

    def close(self) -> None:
        """End it; takes as long as a step. Called in a thread, once."""
        ...


T = TypeVar("T", bound=Loaded)
T_co = TypeVar("T_co", bound=Loaded, covariant=True)


class Loader(Protocol[T_co]):
    """What loads models. Its methods are called in threads, one at a time."""

    def demand(self, name: str) -> Callable[[int], object]:
        """Told how many bytes are free, raises MemoryPlanError where that is too little for the model. Raises what
        `load` does for one that cannot be served at all."""
        ...

    def load(self, name: str, progress: Progress) -> T_co:
        """Load it. `progress` may raise to stop that."""
        ...

    def tidy(self) -> None:
        """Give back the memory of a model that was closed, and that nobody knows any more."""
        ...


class Lease(Generic[T]):
    """While it is held, `value` stays loaded. Used on the event loop."""

    def __init__(self, member: "Member[T]", value: T, released: Callable[[], None]) -> None:
        self.value = value
        self._member: Member[T] | None = member
        self._released = released
        member.leases += 1

    def keep_for(self, seconds: float | None) -> None:
        """How long the model stays loaded after its last use, in place of what all are kept: 0 lets it go at once,
        infinity never."""
        if self._member is not None:
            self._member.keep_s = seconds

    def release(self) -> None:
        """Let go; safe to call again."""
        member, self._member = self._member, None
        if member is not None:
            member.leases -= 1
            self._released()


@dataclass(eq=False, slots=True)
class Member(Generic[T]):
    """keep_s: as in `Lease.keep_for`. reason, retry_at: why it failed, and when that is tried again. used_at: when it
    was last let go, retry_at likewise in monotonic seconds. stage, done, total: of a load. loads: how often that was
    done."""

    name: str
    state: State = "cold"
    value: T | None = None
    leases: int = 0
    used_at: float = 0.0
    keep_s: float | None = None
    reason: str = ""
    retry_at: float = 0.0
    stage: str = ""
    done: int = 0
    total: int = 0
    loads: int = 0
    restarts: int = 0
    given_up: bool = False  # what still runs of it was abandoned
    waiters: "deque[asyncio.Future[Lease[T]]]" = field(default_factory=deque)

    def report(self, stage: str, done: int, total: int) -> None:
        """How far the load has come; called by its thread."""
        self.stage, self.done, self.total = stage, done, total

    def wanted(self) -> bool:
        """Whether somebody still waits for it."""
        return any(not waiter.done() for waiter in self.waiters)

    def show(self, now: float, keep_s: float) -> dict[str, Any]:
        """What is told of it; times in seconds, null for never. keep_s: of models without a time of their own."""
        keep = keep_s if self.keep_s is None else self.keep_s
        idle = now - self.used_at if self.state == "ready" and not self.leases else None
        left = None if idle is None or not keep < float("inf") else max(0.0, keep - idle)
        loading = {"stage": self.stage, "done": self.done, "total": self.total}
        return {
            "id": self.name,
            "state": self.state,
            "reason": self.reason,
            "retry_s": max(0.0, self.retry_at - now) if self.state == "failed" else None,
            "requests": self.leases,
            "waiting": sum(not waiter.done() for waiter in self.waiters),
            "idle_s": idle,
            "unloads_in_s": left,
            "loading": loading if self.state == "loading" else None,
            "loads": self.loads,
            "restarts": self.restarts,
            "bytes": 0 if self.value is None else self.value.nbytes,
        }
