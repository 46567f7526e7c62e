"""Prompts to run a model with: from files of people, standard input or the bundled sample."""

import importlib.resources
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .chat_template import ChatTemplate
from .config import ConfigError, readable
from .errors import RequestError
from .tokenizer import Tokenizer

SAMPLE = "sample_prompts.jsonl"
MAX_PROMPTS = 10_000
MAX_BYTES = 64 << 20  # of one file
_MAX_CHARACTERS_PER_TOKEN = 64  # on average over a whole prompt; far above any real text
_FORMS = '{"messages": [...]} or {"prompt": "..."}'


class PromptError(ConfigError):
    """Prompts that cannot be used; the message names file and line and says what would be right."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to go on with, or the messages of a conversation. where: file and line, for people."""

    where: str
    content: str | Sequence[Mapping[str, Any]]


def sample_prompts(*, chat: bool) -> list[Prompt]:
    """The bundled sample: code, prose, mathematics, several languages, chat, lists and JSON. chat: the model knows
    conversations; for another one they become texts."""
    data = importlib.resources.files(__package__).joinpath(SAMPLE).read_bytes()
    prompts = _parse_lines("the bundled sample", data, are_objects=True)
    return [prompt if chat else replace(prompt, content=_as_text(prompt.content)) for prompt in prompts]


def read_prompts(source: str) -> list[Prompt]:
    """The prompts of a .jsonl file (an object a line), another file (a text a line), a folder (of .jsonl files, and
    other files that are one text each), or - for standard input (lines of either sort). Raises PromptError."""
    if not source:  # which a path would take for the folder that we are in
        raise PromptError("--prompts names nothing; name a file or a folder of prompts, or - for standard input")
    if source == "-":
        data = sys.stdin.buffer.read(MAX_BYTES + 1)
        prompts = list(_parse_lines("standard input", data, are_objects=data.lstrip().startswith(b"{")))
    elif os.path.isdir(path := Path(source)):  # which takes a name of any length
        files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
        prompts = [prompt for file in files for prompt in _read_file(file, whole=True)]
    else:
        prompts = list(_read_file(path, whole=False))
    if not prompts:
        raise PromptError(f"--prompts {readable(source)} holds no prompt; {_remedy(source)}")
    if len(prompts) > MAX_PROMPTS:
        raise PromptError(
            f"--prompts {readable(source)} holds {len(prompts)} prompts; at most {MAX_PROMPTS} are run, so name fewer"
        )
    return prompts


def encode_prompts(
    prompts: Sequence[Prompt], tokenizer: Tokenizer, template: ChatTemplate, max_context: int, max_tokens: int
) -> list[tuple[int, ...]]:
    """Token ids of the prompts, each so short that `max_tokens` more fit the context. Raises PromptError."""
    room = max_context - max_tokens
    if room < 1:
        raise PromptError(
            f"--tokens {max_tokens} leaves no room for a prompt in a context of {max_context}; generate fewer"
        )
    return [_encode(prompt, tokenizer, template, room) for prompt in prompts]


def _as_text(content: str | Sequence[Mapping[str, Any]]) -> str:
    return content if isinstance(content, str) else "\n\n".join(message["content"] for message in content)


def _encode(prompt: Prompt, tokenizer: Tokenizer, template: ChatTemplate, room: int) -> tuple[int, ...]:
    too_long = f"it must leave room in the context: at most {room} tokens; shorten it, or raise --context"
    if not isinstance(prompt.content, str) and tokenizer.chat_template is None:
        raise PromptError(f'{prompt.where}: the model has no chat template; write {{"prompt": "..."}} lines for it')
    try:
        is_text = isinstance(prompt.content, str)
        text = prompt.content if isinstance(prompt.content, str) else template.render(prompt.content)
        if len(text) > room * _MAX_CHARACTERS_PER_TOKEN:
            raise PromptError(f"{prompt.where}: the prompt has {len(text)} characters, and {too_long}")
        ids = tuple(tokenizer.encode(text, add_special=is_text))
    except RequestError as error:
        raise PromptError(f"{prompt.where}: {error}") from error
    if not ids:
        raise PromptError(f"{prompt.where}: the prompt is empty; leave it out")
    if len(ids) > room:
        raise PromptError(f"{prompt.where}: the prompt has {len(ids)} tokens, and {too_long}")
    return ids


def _read_file(path: Path, *, whole: bool) -> Iterator[Prompt]:
    """whole: a file that is no .jsonl is one text."""
    name = readable(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise PromptError(
            f"{name} cannot be read ({error.strerror}); name a .jsonl or text file, a folder of such, or - for "
            "standard input"
        ) from error
    if path.suffix != ".jsonl" and whole:
        text = _decode(name, data).strip()
        return iter([Prompt(name, text)] if text else [])
    return _parse_lines(name, data, are_objects=path.suffix == ".jsonl")


def _parse_lines(name: str, data: bytes, *, are_objects: bool) -> Iterator[Prompt]:
    """A prompt for each line that is not empty."""
    # Only these end a line: others that Unicode knows may stand inside a text.
    for number, line in enumerate(_decode(name, data).replace("\r\n", "\n").split("\n"), 1):
        where = f"{name}, line {number}"
        if line.strip():
            yield Prompt(where, _content(where, line) if are_objects else line.strip())


def _decode(name: str, data: bytes) -> str:
    if len(data) > MAX_BYTES:
        raise PromptError(f"{name} is larger than {MAX_BYTES >> 20} MiB; name a smaller selection of prompts")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PromptError(f"{name}, line {line}: this is no UTF-8 text; convert it, or leave the file out") from error
    if (at := text.find("\0")) >= 0:
        line = text.count("\n", 0, at) + 1
        raise PromptError(f"{name}, line {line}: this is no text, it holds a NUL; leave the file out")
    return text


def _content(where: str, line: str) -> str | list[Mapping[str, Any]]:
    """What the object on a line of a .jsonl file holds."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise PromptError(f"{where}: this is no JSON ({error}); write {_FORMS} on each line") from error
    if not isinstance(value, dict) or ("messages" in value) == ("prompt" in value):
        raise PromptError(f"{where}: it must be an object with either messages or prompt; write {_FORMS}")
    messages, prompt = value.get("messages"), value.get("prompt")
    if isinstance(prompt, str) and prompt.strip():
        return prompt
    if isinstance(messages, list) and messages and all(isinstance(message, dict) for message in messages):
        return messages
    what = "prompt must be a text that is not empty" if "prompt" in value else "messages must be a list of objects"
    raise PromptError(f"{where}: {what}; write {_FORMS}")


def _remedy(source: str) -> str:
    if source != "-" and Path(source).is_dir():
        return "put .jsonl files there, or text files of one prompt each"
    return f"write one a line: a text, or in a .jsonl file {_FORMS}"
