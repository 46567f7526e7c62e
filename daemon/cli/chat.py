"""`isotherm chat`: talk to a running daemon in the terminal."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .daemon_options import ApiKeyFile, Port, Url
from .output import ExitCode, err, fail
from .question import lines

if TYPE_CHECKING:
    from .talk import Talk

_HELP = "/reset forgets the talk, /quit or Ctrl-D ends, Ctrl-C stops an answer"


def chat(
    question: Annotated[
        str | None, typer.Argument(help="Ask this, print the answer and exit.", metavar="TEXT", show_default=False)
    ] = None,
    once: Annotated[str | None, typer.Option(help="The same as TEXT.", metavar="TEXT", show_default=False)] = None,
    url: Url = None,
    port: Port = None,
    temperature: Annotated[
        float, typer.Option(help="0 always takes the likeliest token.", min=0, max=100, metavar="NUMBER")
    ] = 0.5,
    max_tokens: Annotated[
        int | None,
        typer.Option(help="The most tokens of one answer.", min=1, metavar="N", show_default="what the context leaves"),
    ] = None,
    api_key_file: ApiKeyFile = None,
) -> None:
    """Talk to the model of a running daemon. Reads lines from a pipe as well, and exits with 1 if one was refused.

    Example: isotherm chat "What is an isotherm?"
    """
    from .remote import connect, get_model
    from .talk import Talk

    if question is not None and once is not None:
        fail("the question is there twice; leave --once out", ExitCode.USAGE)
    text = once if question is None else question
    with connect(url, port, api_key_file) as client:
        model = get_model(client)
        options: dict[str, Any] = {"model": model, "temperature": temperature}
        if max_tokens is not None:
            options["max_tokens"] = max_tokens
        talk = Talk(client, options)
        if text is not None:
            answered = talk.say(text)
        else:
            if sys.stdin.isatty():
                _tell(f"{model} at {str(client.base_url).rstrip('/')}")
                _tell(_HELP)
            answered = _loop(talk) or sys.stdin.isatty()
    if not answered:
        raise typer.Exit(ExitCode.FAILURE)


def _loop(talk: "Talk") -> bool:
    """Ask line by line; whether all were answered."""
    answered = True
    for line in lines():
        text = line.strip()
        if text == "/quit":
            break
        if text == "/reset":
            talk.messages.clear()
            _tell("a new talk begins")
        elif text == "/help":
            _tell(_HELP)
        elif text.startswith("/"):
            _tell(f"no such command: {_HELP}")
        elif text:
            answered = talk.say(text) and answered
    return answered


def _tell(words: str) -> None:
    err.print(words, markup=False, highlight=False, soft_wrap=True)
