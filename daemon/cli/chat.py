"""`isotherm chat`: talk to a running daemon in the terminal."""

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any

import httpx
import typer

from .output import ExitCode, err, fail, out
from .remote import ApiKeyFile, Url, check, connect, error_message, get, no_daemon

_HELP = "/reset forgets the talk, /quit or Ctrl-D ends, Ctrl-C stops an answer"


def chat(
    url: Url = None,
    once: Annotated[
        str | None, typer.Option(help="Ask this, print the answer and exit.", metavar="TEXT", show_default=False)
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.", min=0, max=100)] = 0.5,
    max_tokens: Annotated[
        int | None, typer.Option(help="The most tokens of one answer.", min=1, show_default="what the context leaves")
    ] = None,
    api_key_file: ApiKeyFile = None,
) -> None:
    """Talk to the model of a running daemon. Reads lines from a pipe as well.

    Example: isotherm chat --once "What is an isotherm?"
    """
    with connect(url, api_key_file) as client:
        model = get(client, "/v1/models")["data"][0]["id"]
        options: dict[str, Any] = {"model": model, "temperature": temperature}
        if max_tokens is not None:
            options["max_tokens"] = max_tokens
        talk = Talk(client, options)
        if once is not None:
            if not talk.say(once):
                raise typer.Exit(ExitCode.FAILURE)
            return
        if sys.stdin.isatty():
            err.print(f"{model} at {client.base_url}: {_HELP}", markup=False, highlight=False)
        _loop(talk)


def _loop(talk: "Talk") -> None:
    for line in _lines():
        text = line.strip()
        if text == "/quit":
            return
        if text == "/reset":
            talk.messages.clear()
        elif text.startswith("/"):
            err.print(f"no such command: {_HELP}", markup=False, highlight=False)
        elif text:
            talk.say(text)


def _lines() -> Iterator[str]:
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    with suppress(ImportError):
        import readline  # noqa: F401  # gives the prompt history and editing
    with suppress(EOFError, KeyboardInterrupt):
        while True:
            yield out.input("[bold]> [/bold]")


@dataclass
class Talk:
    """A conversation; `messages` is what the next question is sent with."""

    client: httpx.Client
    options: dict[str, Any]
    messages: list[dict[str, str]] = field(default_factory=list)

    def say(self, text: str) -> bool:
        """Ask, print the answer as it comes and remember both. False if the daemon refused; then nothing is."""
        sendable = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")  # arguments may be any bytes
        question = {"role": "user", "content": sendable}
        body = {**self.options, "messages": [*self.messages, question], "stream": True}
        pieces: list[str] = []
        try:
            with self.client.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code == 401:
                    check(response)
                if response.status_code != 200:
                    raise _RefusedError(error_message(response))
                for piece in _pieces(response):
                    pieces.append(piece)
                    out.out(piece, end="", highlight=False)
        except KeyboardInterrupt:  # the closed connection tells the daemon
            out.out(" [stopped]", highlight=False)
        except _RefusedError as error:
            err.print(f"the daemon refuses: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
            return False
        except httpx.ConnectError as error:
            no_daemon(self.client, error)
        except httpx.HTTPError as error:
            fail(f"the daemon went away in the middle of the answer ({type(error).__name__})", ExitCode.NO_DAEMON)
        else:
            out.out("", highlight=False)
        self.messages += [question, {"role": "assistant", "content": "".join(pieces)}]
        return True


class _RefusedError(Exception):
    """The daemon answered with an error."""


def _pieces(response: httpx.Response) -> Iterator[str]:
    """The text of a stream, piece by piece."""
    for line in response.iter_lines():
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        chunk = json.loads(line.removeprefix("data: "))
        if "error" in chunk:
            raise _RefusedError(chunk["error"]["message"])
        for choice in chunk["choices"]:
            if piece := choice["delta"].get("content"):
                yield piece
