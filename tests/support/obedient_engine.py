"""Obedient: stands in for daemon.client.EngineClient where operators ask something of the engine."""

from concurrent.futures import Future
from typing import Any

from isotherm.daemon.messages import Command
from support.scripted_engine import ScriptedEngine


class Obedient(ScriptedEngine):
    """Answers a command with `answer`, or as that error says; None lets it wait for ever."""

    def __init__(self, answer: Any) -> None:
        super().__init__(lambda submit: [])
        self.answer, self.asked = answer, []
        self.waiting: Future[Any] = Future()

    def ask(self, command: Command) -> "Future[Any]":
        self.asked.append(command)
        if isinstance(self.answer, Exception):
            self.waiting.set_exception(self.answer)
        elif self.answer is not None:
            self.waiting.set_result(self.answer)
        return self.waiting
