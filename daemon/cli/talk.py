"""A conversation with the daemon in the terminal."""

import json
from dataclasses import dataclass, field
from typing import Any

import httpx

from .output import ExitCode, err, fail, out
from .remote import check, error_fields, no_daemon

_NEW_TALK = "/reset starts a new talk"


@dataclass
class Talk:
    """`messages` is what the next question is sent with; `options` are further fields of each request."""

    client: httpx.Client
    options: dict[str, Any]
    messages: list[dict[str, str]] = field(default_factory=list)

    def say(self, text: str) -> bool:
        """Ask, print the answer as it comes and remember both. False if there was no whole answer; then nothing is."""
        sendable = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")  # arguments may be any bytes
        question = {"role": "user", "content": sendable}
        answer = _Answer()
        try:
            self._ask([*self.messages, question], answer)
        except KeyboardInterrupt:  # the closed connection tells the daemon
            answer.end("[stopped]")
        except _RefusedError as error:
            answer.break_off()
            _say_in_red(self._explain(error, bool(answer.text)))
            return False
        except httpx.HTTPError as error:
            answer.break_off()
            if isinstance(error, httpx.ConnectError) and not self.messages:
                no_daemon(self.client, error)
            where = " in the middle of the answer" if answer.text else ""
            fail(f"the daemon went away{where} ({type(error).__name__})", ExitCode.NO_DAEMON)
        else:
            answer.end(self._note(answer.finish_reason))
        self.messages += [question, {"role": "assistant", "content": answer.text}]
        return True

    def _ask(self, messages: list[dict[str, str]], answer: "_Answer") -> None:
        body = {**self.options, "messages": messages, "stream": True}
        with self.client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code == 401:
                check(self.client, response)
            if response.status_code != 200:
                raise _RefusedError(error_fields(response) or {"message": f"status {response.status_code}"})
            for line in response.iter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    answer.add(json.loads(line.removeprefix("data: ")))

    def _explain(self, error: "_RefusedError", begun: bool) -> str:
        if error.code == "context_length_exceeded" and self.messages:
            return f"the talk and this question do not fit the context: {error}; {_NEW_TALK}"
        return f"the answer was cut off: {error}" if begun else f"the daemon refuses: {error}"

    def _note(self, finish_reason: str | None) -> str:
        if finish_reason != "length":
            return ""
        if "max_tokens" in self.options:
            return f"[cut off at {self.options['max_tokens']} tokens]"
        return f"[the context is full; {_NEW_TALK}]"


class _RefusedError(Exception):
    """The daemon answered with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.code = error.get("code")


class _Answer:
    """What has come of an answer, shown as it comes."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._thinking = False
        self.finish_reason: str | None = None

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def add(self, chunk: dict[str, Any]) -> None:
        """One chunk of the stream. Raises _RefusedError if it is an error."""
        if "error" in chunk:
            raise _RefusedError(chunk["error"])
        for choice in chunk["choices"]:
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            self._think(choice["delta"].get("reasoning_content"))
            if piece := choice["delta"].get("content"):
                self._pieces.append(piece)
                self._stop_thinking()
                out.out(piece, end="", highlight=False)

    def _think(self, piece: str | None) -> None:
        """Reasoning is no part of the answer: it goes to the error stream."""
        if piece:
            self._thinking = True
            err.out(piece, end="", style="dim", highlight=False)

    def _stop_thinking(self) -> None:
        if self._thinking:
            err.out("", highlight=False)
        self._thinking = False

    def break_off(self) -> None:
        """End the line, if one was begun, before an error is told."""
        self._stop_thinking()
        if self._pieces:
            out.out("", highlight=False)

    def end(self, note: str = "") -> None:
        """End the line, and add a note that is no part of the text."""
        self._stop_thinking()
        out.out("", highlight=False)
        if note:
            err.print(note, style="dim", markup=False, highlight=False, soft_wrap=True)


def _say_in_red(words: str) -> None:
    err.print(words, style="red", markup=False, highlight=False, soft_wrap=True)
