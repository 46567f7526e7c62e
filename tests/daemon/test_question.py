"""The prompt of `isotherm chat`."""

import io
import re
import sys

import pytest
from isotherm.daemon.cli import question
from rich.console import Console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def play(monkeypatch: pytest.MonkeyPatch, *events: str | BaseException) -> list[str]:
    """In a terminal, give these events to the prompt one by one; returns the prompts that are shown."""
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(sys, "stdout", Terminal())
    left, prompts = list(events), list[str]()

    def read(prompt: str) -> str:
        prompts.append(prompt)
        event = left.pop(0)
        if isinstance(event, BaseException):
            raise event
        return event

    monkeypatch.setattr("builtins.input", read)
    return prompts


def test_ctrl_c_drops_the_line_and_ctrl_d_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = play(monkeypatch, "one", KeyboardInterrupt(), "two", EOFError())
    assert list(question.lines()) == ["one", "two"]
    assert len(prompts) == 4


@pytest.mark.parametrize("colour", [True, False])
def test_what_the_prompt_colours_takes_no_room(monkeypatch: pytest.MonkeyPatch, colour: bool) -> None:
    """Readline counts what is not between these two marks."""
    console = Console(force_terminal=True, color_system="standard" if colour else None, no_color=False)
    monkeypatch.setattr(question, "out", console)
    prompts = play(monkeypatch, EOFError())
    assert list(question.lines()) == []
    assert ("\x1b" in prompts[0]) is colour
    assert re.sub("\x01[^\x02]*\x02", "", prompts[0]) == "> "
