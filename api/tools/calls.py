"""Calls: what the readers of one choice share: the tools' names, and the calls begun so far."""

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from ..chat.events import CallArguments, CallBegan

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

NewId = Callable[[str, int], str]


class Calls:
    """The calls of one choice.

    parameters: of each tool that may be called, its JSON schema. new_id: makes the id of a call out of its name and
    number. warn: is told a kind and a sentence of what the model wrote against its format.
    """

    def __init__(
        self, parameters: Mapping[str, Mapping[str, Any]], new_id: NewId, warn: Callable[[str, str], None]
    ) -> None:
        self.parameters = parameters
        self.warn = warn
        self.count = 0
        self._new_id = new_id
        self._ids: set[str] = set()

    def begin(self, name: str, call_id: str | None = None) -> CallBegan:
        """The next call. call_id: the model's own, where its format has such and its template wants it back."""
        if call_id is None or call_id in self._ids:
            call_id = self._new_id(name, self.count)
        while call_id in self._ids:
            call_id = plain_id(name, self.count)
        self._ids.add(call_id)
        self.count += 1
        return CallBegan(self.count - 1, call_id, name)

    def arguments(self, text: str) -> CallArguments:
        """A piece of the last call's arguments."""
        return CallArguments(self.count - 1, text)

    def known(self, name: object) -> bool:
        """Whether it is one of the tools."""
        return isinstance(name, str) and name in self.parameters


def plain_id(_name: str, _number: int) -> str:
    """As OpenAI's."""
    return f"call_{secrets.token_hex(12)}"


def nine_letters(_name: str, _number: int) -> str:
    """As Mistral's templates demand."""
    return "".join(secrets.choice(_LETTERS) for _ in range(9))


def numbered_id(name: str, number: int) -> str:
    """As Kimi writes them itself."""
    return f"functions.{name}:{number}"
