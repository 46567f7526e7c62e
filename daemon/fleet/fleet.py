"""Fleet: which of the known models are loaded. Requests take leases; who asks for a model that is not loaded waits.

One model is moved at a time, in the order in which the first request for each came. Where memory is short, models that
were not used for the longest time leave: they take no new requests from then on, end the open ones, and go. So a stream
of requests for one model does not keep another one out, and each gets its turn.
"""

import asyncio
import logging
import math
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Generic

from ...experts.errors import DeviceFullError
from ..errors import EngineError, ModelNotLoadedError, OverloadedError
from ..events import EventLog
from ..machine import free_memory
from ..memory import MemoryPlanError
from .member import Lease, Loader, Member, T
from .restarts import MAX_RESTARTS, Restarts
from .threads import Threads

logger = logging.getLogger(__name__)

RETRY_S = 30.0  # until a model that could not be loaded is tried again
_PATIENCE_S = 60.0  # that a load which was told to stop may take for it


class LoadStopped(Exception):
    """The daemon ends while a model is loaded."""


class Fleet(Generic[T]):
    """Its methods are called on one event loop, but for `close` and those that show.

    keep_s: how long an idle model stays loaded; 0 is for good. max_waiting: requests that may wait for models.
    lost: why nothing can be done any more for a model that hangs, so that the process should end; None if it is well.
    """

    def __init__(
        self,
        names: Sequence[str],
        loader: Loader[T],
        events: EventLog,
        *,
        keep_s: float = 0.0,
        max_waiting: int = 256,
        free: Callable[[], int] = free_memory,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.keep_s, self.max_waiting = keep_s, max_waiting
        self.lost: str | None = None
        self._restarts, self._threads = Restarts(clock), Threads()
        self._members = {name: Member[T](name) for name in names}
        self._loader, self._events, self._free, self._clock = loader, events, free, clock
        self._wanted: dict[str, None] = {}  # names in the order of their turns
        self._mover: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._moving = asyncio.Lock()
        self._changed = asyncio.Event()  # a lease was released, or somebody no longer waits
        self._refusal: str | None = None

    @property
    def refusal(self) -> str | None:
        """Why nothing is taken in any more, None while it is."""
        return self._refusal

    @property
    def names(self) -> tuple[str, ...]:
        """All models that are known, the default first."""
        return tuple(self._members)

    @property
    def default(self) -> str:
        """The model of requests that name none."""
        return next(iter(self._members))

    def adopt(self, name: str, value: T) -> None:
        """Take in a model that was loaded before."""
        member = self._members[name]
        member.value, member.state, member.used_at = value, "ready", self._clock()
        member.loads += 1

    def loaded(self) -> Iterator[tuple[str, T]]:
        """The models that are loaded, those that leave included."""
        for member in self._members.values():
            value = member.value
            if value is not None:
                yield member.name, value

    def ready(self) -> Iterator[tuple[str, T]]:
        """The models that take requests now."""
        for member in self._members.values():
            if member.state == "ready" and member.value is not None:
                yield member.name, member.value

    def find(self, name: str) -> T | None:
        """A model, if it is loaded."""
        return self._members[name].value

    def loading(self) -> list[str]:
        """The models that are being loaded, or start anew."""
        return [member.name for member in self._members.values() if member.state in ("loading", "restarting")]

    def show(self) -> list[dict[str, Any]]:
        """How all models are, see `Member.show`."""
        now, keep = self._clock(), self.keep_s or math.inf
        return [member.show(now, keep) for member in self._members.values()]

    def lease_now(self, name: str) -> Lease[T] | None:
        """A lease of a model that is ready, None of another. Raises EngineError when the door is closed."""
        if self._refusal is not None:
            raise EngineError(self._refusal)
        member = self._members[name]
        if member.state != "ready" or member.value is None:
            return None
        return Lease(member, member.value, lambda: self._released(member))

    async def lease(self, name: str) -> Lease[T]:
        """A lease, as soon as the model is loaded. Who is cancelled gives up his place.

        Raises ModelNotLoadedError where it cannot be, OverloadedError where too many wait, EngineError as `lease_now`.
        """
        lease = self.lease_now(name)
        if lease is not None:
            return lease
        member = self._members[name]
        self._check_hope(member)
        waiter: asyncio.Future[Lease[T]] = asyncio.get_running_loop().create_future()
        member.waiters.append(waiter)
        if member.state != "restarting":
            self._want(name)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:  # both came at once
                waiter.result().release()
            self._changed.set()
            raise

    def let_go(self) -> None:
        """Unload what was idle for long enough; called several times a second."""
        now = self._clock()
        for member in self._members.values():
            keep = (self.keep_s or math.inf) if member.keep_s is None else member.keep_s
            if member.state == "ready" and not member.leases and now - member.used_at >= keep:
                self.unload(member.name)

    def unload_idle(self) -> None:
        """Unload all models without requests, but for the one that was used last."""
        idle = [member for member in self._by_age() if member.state == "ready" and not member.leases]
        for member in [each for each in idle if each is not max(idle, key=lambda each: each.used_at)]:
            self.unload(member.name)

    def unload(self, name: str) -> None:
        """Unload a model that is ready, once its requests have ended."""
        member = self._members[name]
        if member.state == "ready":
            member.state = "leaving"
            self._begin(self._leave(member))

    def heal(self) -> None:
        """Restart models that hang or have died; called several times a second."""
        for member in self._members.values():
            value = member.value
            if value is None or self._refusal is not None or member.state not in ("ready", "leaving"):
                continue
            reason = None if member.given_up else value.ailment()
            if reason is None:
                continue
            value.abandon(reason)
            if member.state == "leaving":  # it only has to get out of the way
                member.given_up = True
            elif not self._restarts.allow():
                self.lost = f"{MAX_RESTARTS} restarts within an hour were not enough; the last reason: {reason}"
            else:
                member.state, member.restarts = "restarting", member.restarts + 1
                member.report("restarting the engine", 0, 0)
                self._begin(self._restart(member, value))

    async def _restart(self, member: Member[T], value: T) -> None:
        try:
            await self._threads.run(value.restart)
        except Exception as error:
            logger.exception("the engine of %s could not be restarted", member.name)
            self.lost = f"the engine of {member.name} could not be restarted: {error}"
            self._refuse(member, EngineError(self.lost))
            return
        self._events.record("engine_restarted", f"{member.name} goes on; its open requests have failed", logging.ERROR)
        member.state = "ready"
        self._grant(member)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def shut(self, reason: str) -> None:
        """Close the door: who waits for a model, or comes later, is refused. The first reason stays."""
        if self._refusal is None:
            self._refusal = reason
        for member in self._members.values():
            self._refuse(member, EngineError(reason))

    def close(self) -> None:
        """Unload everything, after the event loop has ended. A load under way is stopped."""
        self._refusal = self._refusal or "the engine is shutting down"
        self._threads.join(_PATIENCE_S)
        for member in self._members.values():
            value, member.value = member.value, None
            if value is not None:
                value.close()

    def _want(self, name: str) -> None:
        self._wanted.setdefault(name)
        if self._mover is None or self._mover.done():
            self._mover = asyncio.get_running_loop().create_task(self._move())

    def _check_hope(self, member: Member[T]) -> None:
        now = self._clock()
        if member.state == "failed" and now < member.retry_at:
            raise ModelNotLoadedError(_not_loaded(member), member.retry_at - now)
        waiting = sum(len(other.waiters) for other in self._members.values())
        if waiting >= self.max_waiting:
            raise OverloadedError(f"{waiting} requests wait for models to be loaded; no more may", RETRY_S)

    async def _move(self) -> None:
        """Bring in what is wanted, until nothing is."""
        while self._wanted:
            member = self._members[next(iter(self._wanted))]
            async with self._moving:
                try:
                    await self._bring(member)
                except Exception as error:
                    self._fail(member, error)
            del self._wanted[member.name]
            if member.wanted() and member.state == "cold":  # they came while it was given up
                self._wanted[member.name] = None

    async def _bring(self, member: Member[T]) -> None:
        """Load a model, unless everybody has left who asked for it."""
        if member.state == "leaving":  # it was to be unloaded, and stays
            member.state = "ready"
        if member.state == "ready":
            self._grant(member)
            return
        if member.state == "restarting":  # they get theirs when that is done
            return
        if not member.wanted():
            member.waiters.clear()
            return
        member.report("making room", 0, 0)
        member.state, member.reason = "loading", ""
        name = member.name
        enough = await self._threads.run(lambda: self._loader.demand(name))
        while leaving := self._who_leaves(enough):
            if not await self._vacate(leaving, member):
                member.state = "cold"
                return
        while member.value is None:
            try:
                await self._threads.run(lambda: self._load(member))
            except (MemoryPlanError, DeviceFullError):  # such as memory of an accelerator
                others = self._by_age()
                if not others:
                    raise
                if not await self._vacate(others[:1], member):
                    member.state = "cold"
                    return
        member.state, member.used_at = "ready", self._clock()
        member.loads += 1
        self._grant(member)

    def _load(self, member: Member[T]) -> None:
        member.value = self._loader.load(member.name, self._reporter(member))

    def _reporter(self, member: Member[T]) -> Callable[[str, int, int], None]:
        def report(stage: str, done: int, total: int) -> None:
            member.report(stage, done, total)
            if self._refusal is not None:
                raise LoadStopped(self._refusal)

        return report

    def _by_age(self) -> list[Member[T]]:
        """The loaded ones: those without requests first, and those first that were not used for the longest time."""
        loaded = [
            member for member in self._members.values() if member.value is not None and member.state != "restarting"
        ]
        return sorted(loaded, key=lambda member: (member.leases > 0, member.used_at))

    def _who_leaves(self, enough: Callable[[int], object]) -> list[Member[T]]:
        """The fewest models whose memory suffices, none if there is room now. Raises MemoryPlanError where even all
        of them are too few."""
        free, leaving = self._free(), list[Member[T]]()
        others = self._by_age()
        while True:
            try:
                enough(free)
            except MemoryPlanError:
                if len(leaving) == len(others):
                    raise
                leaving.append(others[len(leaving)])
                free += _bytes_of(leaving[-1])
            else:
                return leaving

    async def _vacate(self, leaving: Sequence[Member[T]], wanted: Member[T]) -> bool:
        """Unload models when their requests have ended. False if nobody waits for `wanted` any more; they stay then."""
        for member in leaving:
            member.state = "leaving"
        for member in leaving:
            while member.leases and wanted.wanted():
                self._changed.clear()
                await self._changed.wait()
            if not wanted.wanted():
                self._restore(leaving)
                return False
            logger.info("%s is unloaded to make room for %s", member.name, wanted.name)
            await self._unload(member)
        return True

    def _restore(self, members: Sequence[Member[T]]) -> None:
        for member in members:
            if member.value is not None:
                member.state = "ready"
                self._grant(member)

    async def _leave(self, member: Member[T]) -> None:
        """Unload a model, unless somebody wants it after all before its turn comes."""
        async with self._moving:
            while member.state == "leaving" and member.leases:
                self._changed.clear()
                await self._changed.wait()
            if member.state == "leaving":
                logger.info("%s is unloaded", member.name)
                await self._unload(member)

    async def _unload(self, member: Member[T]) -> None:
        def work() -> None:
            value, member.value = member.value, None
            if value is not None:
                value.close()
            del value
            self._loader.tidy()

        try:
            await self._threads.run(work)
        finally:
            member.state, member.keep_s, member.given_up = "cold", None, False

    def _grant(self, member: Member[T]) -> None:
        waiters, value = list(member.waiters), member.value
        member.waiters.clear()
        assert value is not None
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(Lease(member, value, lambda: self._released(member)))

    def _refuse(self, member: Member[T], error: Exception) -> None:
        waiters = list(member.waiters)
        member.waiters.clear()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)
        self._changed.set()

    def _fail(self, member: Member[T], error: Exception) -> None:
        if isinstance(error, LoadStopped):
            member.state = "cold"
            return
        logger.info("%s could not be loaded", member.name, exc_info=error)
        traceback.clear_frames(error.__traceback__)  # they may hold the weights that were loaded so far
        member.state, member.reason, member.retry_at = "failed", str(error), self._clock() + RETRY_S
        self._events.record("model_not_loaded", _not_loaded(member), logging.ERROR)
        self._refuse(member, ModelNotLoadedError(_not_loaded(member), RETRY_S))

    def _released(self, member: Member[T]) -> None:
        member.used_at = self._clock()
        self._changed.set()


def _bytes_of(member: Member[T]) -> int:
    value = member.value
    return 0 if value is None else value.nbytes


def _not_loaded(member: Member[T]) -> str:
    return f"the model {member.name!r} could not be loaded: {member.reason}"
