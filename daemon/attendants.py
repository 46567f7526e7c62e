"""Attendants: what is done between steps, in the runner's thread: experts are moved, memory is given back."""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import InvalidStateError
from contextlib import suppress
from typing import Any, Protocol

from .errors import EngineError, InvalidRequestError
from .events import EventLog
from .messages import Ask, Command
from .step import StepPlan

logger = logging.getLogger(__name__)

Answers = Mapping[type[Command], Callable[[Any], Any]]


class Attendant(Protocol):
    """commands: what it answers, by the class of the command. An answer may be any value that JSON has; errors of
    `daemon.errors` are told to whoever asks."""

    @property
    def commands(self) -> Answers: ...

    def between_steps(self, plan: StepPlan | None) -> float | None:
        """After each step that did not fail, which every stream waits for: so keep it short. With None when nothing is
        to be computed; then the seconds after which to be called again unless something comes, None for no need."""
        ...


class Attendants:
    """All of an engine. One that fails is done without from then on: no request depends on it."""

    def __init__(self, attendants: Sequence[Attendant], events: EventLog) -> None:
        self._attendants = list(attendants)
        self._events = events
        self._stopped: set[type[Command]] = set()  # commands that nobody answers any more

    def between_steps(self, plan: StepPlan | None) -> float | None:
        """See `Attendant`; the shortest pause of all."""
        pauses: list[float] = []
        for attendant in tuple(self._attendants):
            try:
                pause = attendant.between_steps(plan)
            except Exception as error:
                logger.exception("what is done between steps failed")
                self._attendants.remove(attendant)
                self._stopped |= set(attendant.commands)
                detail = f"{type(attendant).__name__}: {type(error).__name__}: {error}"
                self._events.record("attendant_stopped", detail, logging.ERROR)
            else:
                pauses += [] if pause is None else [pause]
        return min(pauses, default=None)

    def answer(self, ask: Ask) -> None:
        """Do what a command says, and answer it, whatever happens."""
        if ask.answer.done() or not ask.answer.set_running_or_notify_cancel():
            return  # nobody waits for it any more
        error: Exception | None = None
        try:
            result = self._obey(ask.command)
        except Exception as problem:
            logger.info("%s failed: %s: %s", type(ask.command).__name__, type(problem).__name__, problem)
            error = problem
        with suppress(InvalidStateError):  # the engine was given up meanwhile
            if error is None:
                ask.answer.set_result(result)
            else:
                ask.answer.set_exception(error)

    def _obey(self, command: Command) -> Any:
        for attendant in self._attendants:
            if type(command) in attendant.commands:
                return attendant.commands[type(command)](command)
        if type(command) in self._stopped:
            raise EngineError("what did this has failed and was stopped; isotherm status says why; restart it")
        raise InvalidRequestError("this daemon serves without accelerators; name some by isotherm serve --accelerator")
