"""NotedReader: a reader of a notation that tests can write, so that dialects need no model's own syntax."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from isotherm.api.chat.events import CallArguments, CallBegan, ChatEvent, Reasoning, Text
from isotherm.api.chat.prepare import Conversation, prepare
from isotherm.api.chat.reading import ChatReading
from isotherm.api.chat.wish import ChatWish
from isotherm.api.service import Service


class NotedReader:
    """ "?thought|text|!add{"a": 1}|" is a thought, a text and a call."""

    def __init__(self) -> None:
        self._kind = ""
        self._name = ""
        self._calls = 0

    def push(self, text: str) -> Sequence[ChatEvent]:
        return [event for char in text for event in self._char(char)]

    def finish(self) -> Sequence[ChatEvent]:
        return []

    def _char(self, char: str) -> list[ChatEvent]:
        if char == "|":
            self._kind = ""
        elif self._kind == "":
            self._kind = {"?": "reasoning", "!": "name"}.get(char, "text")
            self._name = ""
            return [Text(char)] if self._kind == "text" else []
        elif self._kind == "name" and char == "{":
            self._kind = "arguments"
            self._calls += 1
            index = self._calls - 1
            return [CallBegan(index, f"call_{index}", self._name), CallArguments(index, "{")]
        elif self._kind == "name":
            self._name += char
        else:
            return [self._more(char)]
        return []

    def _more(self, char: str) -> ChatEvent:
        if self._kind == "arguments":
            return CallArguments(self._calls - 1, char)
        return Reasoning(char) if self._kind == "reasoning" else Text(char)


def read_notes(monkeypatch: pytest.MonkeyPatch, module: str) -> list[ChatWish]:
    """Have a module's endpoint understand its model by a NotedReader. Returns a list of the wishes that will come."""
    wishes: list[ChatWish] = []

    def noted(service: Service, wish: ChatWish, tenant: str, *rest: Any) -> Conversation:
        wishes.append(wish)
        plain = dataclasses.replace(wish, tools=(), structure=None)
        conversation = prepare(service, plain, tenant, *rest)
        readings = tuple(ChatReading(NotedReader(), service.tokenizer) for _ in conversation.submits)
        return dataclasses.replace(conversation, readings=readings)

    monkeypatch.setattr(f"{module}.prepare", noted)
    return wishes
