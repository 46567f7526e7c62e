"""Documented command lines: as words, with their placeholders filled, and checked against the real commands."""

import re
import shlex
from typing import Any

import typer
from isotherm.daemon.cli.app import app
from isotherm.daemon.cli.default_command import DefaultCommand
from support.pages import ROOT, Command, program_of
from typer.main import get_command

_USAGE_ERROR = typer.BadParameter.__base__
assert _USAGE_ERROR is not None
# By the option before it, or by itself.
_VALUES = {
    ("--threads", "N"): "2",
    ("--threads", "auto"): "auto",
    ("--context", "N"): "256",
    ("--max-tokens", "N"): "4",
    ("--streams", "B"): "2",
    ("--plan", "FILE"): "four.json",
    ("--trace", "FILE"): "routing.npz",
    ("--prompts", "FILE"): "prompts.txt",
    ("--png", "FILE"): "heat.png",
    ("--png", "F.png"): "heat.png",
    ("--plot", "F.png"): "latency.png",
    ("--file", "KEYS"): "keys.txt",
    ("--name", "NAME"): "editor",
    ("--hardware", "NAME"): "ddr5-desktop-rtx3090",
    ("--hardware", "A,B"): "ddr5-desktop-rtx4090,ddr4-desktop-rtx3090",
    ("--accelerator", "NAME"): "emulated:vram=2GiB,link=16GBps",
    ("--out-dir", "D"): "what-if",
    ("isotherm", "COMMAND"): "bench",
    ("--format", "NAME"): "q4_0",
    ("--hardware", "FILE"): str(ROOT / "profiles" / "hardware" / "ddr5-desktop-rtx3090.json"),
    ("", "$(isotherm demo)"): "isotherm-demo.gguf",
    ("", "MODEL"): "model.gguf",
    ("", "MODEL|TRACE"): "model.gguf",
    ("", "TEXT"): "the cat",
    ("", "NAME"): "Qwen3-30B-A3B-GGUF",
    ("", "OWNER/REPO:FORMAT"): "Qwen/Qwen3-30B-A3B-GGUF:Q8_0",
    ("", "A"): "one.json",
    ("", "B"): "four.json",
    ("--port", "N"): "8440",
    ("--port", "PORT"): "8440",
    ("--url", "URL"): "127.0.0.1:8440",
}


def words(text: str) -> list[str]:
    """The words of a command without its redirection; what stands in brackets is there, placeholders have values."""
    bare = re.sub(r"\[OPTIONS\]|\.\.\.", "", text.replace("|", "\\|"))
    for _ in range(2):
        bare = re.sub(r"(?<![\w='\"])\[([^][]*)\]|(?<=\w)\[(:[^][]*)\]", lambda found: found[1] or found[2], bare)
    found = shlex.split(bare.removeprefix("sudo ").split(" > ")[0])
    found[0] = program_of(found[0])
    before = ["", *found]
    return [_value(option, word) for option, word in zip(before, found, strict=False)]


def target(text: str) -> str:
    """The file that a command's output is redirected to, empty if none is."""
    return text.partition(" > ")[2].strip()


def parse(arguments: list[str]) -> tuple[str, dict[str, Any]]:
    """The whole name of the command of isotherm that takes these arguments, and its parameters.

    Raises typer's usage error.
    """
    command: Any = get_command(app)
    rest, name = [word for word in arguments if word not in ("-h", "--help")], "isotherm"
    while children := getattr(command, "commands", {}):
        if rest and rest[0] in children:
            child = rest.pop(0)
        elif isinstance(command, DefaultCommand):
            child = next(iter(children))
        elif rest and rest[0] == "--version":
            return name, {}
        else:
            raise typer.BadParameter(f"{name} has no command {' '.join(rest)!r}")
        command, name = children[child], f"{name} {child}"
    return name, dict(command.make_context(name, rest).params)


def wrong(command: Command) -> str:
    """What a command of isotherm has wrong: empty if nothing. In a sentence it may lack what it needs."""
    try:
        parse(words(command.text)[1:])
    except Exception as error:
        if not isinstance(error, _USAGE_ERROR):  # typer has no public name for it
            raise
        message = str(error)
        lacking = "Missing" in message or "requires an argument" in message
        return "" if lacking and command.place == "prose" else message or repr(error)
    return ""


def is_whole(command: Command) -> bool:
    """Whether what a sentence names could be typed as it is: `isotherm status` in one names it, and no more."""
    line = words(command.text)
    return command.place != "prose" or (line[0] == "isotherm" and len(line) > 2 and not _lacks(line))


def _lacks(line: list[str]) -> bool:
    try:
        parse(line[1:])
    except Exception as error:
        if not isinstance(error, _USAGE_ERROR):
            raise
        return True
    return False


def _value(option: str, word: str) -> str:
    given = _VALUES.get((option, word))
    return given if given is not None else _VALUES.get(("", word), word) if not option.startswith("--") else word
