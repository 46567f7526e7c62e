"""Pulse: how an engine is asked whether it lives, and to prove that it computes."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from .attendants import Answers
from .client import EngineClient
from .errors import EngineError
from .messages import Command
from .step import Chunk, Runner, StepPlan

ANSWER_LIMIT_S = 60.0  # what an idle engine has for an answer; it may be moving experts


@dataclass(frozen=True, slots=True)
class Ping(Command):
    """Answered by any engine that goes round."""


@dataclass(frozen=True, slots=True)
class FirstToken(Command):
    """Compute one token by the whole model, before any request does; answered by its id."""


class Pulse:
    """An attendant that answers both."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    @property
    def commands(self) -> Answers:
        return {Ping: lambda _: None, FirstToken: lambda _: self._first_token()}

    def between_steps(self, plan: StepPlan | None) -> None:
        """Nothing is to be done."""

    def _first_token(self) -> int:
        """No books are kept of it: the first request finds all as if nothing had been computed."""
        plan = StepPlan((Chunk("first token", (0,), 0, (0,), sample=True),))
        logits = self._runner.execute(plan)
        if logits.shape != (1, self._runner.vocab_size) or not np.isfinite(logits).all():
            raise EngineError(f"the first token cannot be drawn: the model gave {logits.shape} logits, or not numbers")
        return int(logits[0].argmax())


class EngineWatch:
    """Looks now and then whether an engine gets on. Limits are in seconds. It keeps nothing of the engine alive."""

    def __init__(self, step_limit: float, answer_limit: float = ANSWER_LIMIT_S) -> None:
        self._step_limit = step_limit
        self._answer_limit = answer_limit
        self._ping: Future[Any] | None = None
        self._asked_at = 0.0

    def fault(self, client: EngineClient, now: float) -> str | None:
        """Why it cannot be called alive at `now` in monotonic seconds, None if it can.

        An engine that has ended, or is about to, is no fault: whoever ended it sees to the rest.
        """
        stats = client.stats()
        if stats.state != "ready":
            self._ping = None
            return None
        if stats.busy:
            self._ping = None  # it is answered after the step, which has a limit of its own
            age = stats.step_age(now)
            return f"a step of the model has been running for {age:.0f} s" if age > self._step_limit else None
        if self._ping is None or self._ping.done():
            try:
                self._ping, self._asked_at = client.ask(Ping()), now
            except EngineError:  # it has ended in this moment
                self._ping = None
            return None
        waited = now - self._asked_at
        return f"the idle engine has not answered for {waited:.0f} s" if waited > self._answer_limit else None


class EnginesWatch:
    """The same for all engines that there are at the moment."""

    def __init__(self, clients: Callable[[], Iterable[EngineClient]], step_limit: float) -> None:
        self._clients = clients
        self._step_limit = step_limit
        self._watches: WeakKeyDictionary[EngineClient, EngineWatch] = WeakKeyDictionary()

    def fault(self, now: float) -> str | None:
        """The first fault of one of them at `now`, None if all are well."""
        for client in self._clients():
            watch = self._watches.setdefault(client, EngineWatch(self._step_limit))
            if (fault := watch.fault(client, now)) is not None:
                return fault
        return None
