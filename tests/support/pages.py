"""The pages of documentation: their blocks of code, the commands in them, links and headings."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[2]
PROGRAMS = ("curl", "docker", "export", "git", "isotherm", "journalctl", "kill", "loginctl", "make", "pip", "pytest")
PROGRAMS += ("mkdir", "python", "source", "systemctl")
Place = Literal["block", "table", "prose"]
_FENCE = re.compile(r"^(```+)\s*(\S*)\s*$")
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_LIST = re.compile(r"^\s*([*+-]|\d+\.)\s")


@dataclass(frozen=True, slots=True)
class Block:
    """language: empty where none is named. line: of its first line, from 1."""

    page: str
    line: int
    language: str
    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """One command line. place: a block of code, the first cell of a table's row, or a sentence."""

    page: str
    line: int
    text: str
    place: Place

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


@cache
def pages() -> tuple[str, ...]:
    """Paths from the root, of all that users read."""
    return ("README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))


@cache
def lines_of(page: str) -> tuple[str, ...]:
    return tuple((ROOT / page).read_text(encoding="utf-8").splitlines())


@cache
def blocks(page: str) -> tuple[Block, ...]:
    """Fenced blocks, and those that are indented by four spaces after an empty line, outside of lists."""
    return tuple(_blocks(page))


@cache
def prose(page: str) -> tuple[tuple[int, str], ...]:
    """The numbered lines that are in no block."""
    inside = {n for block in blocks(page) for n in range(block.line - 1, block.line + block.text.count("\n") + 2)}
    return tuple((number, line) for number, line in enumerate(lines_of(page), 1) if number not in inside)


@cache
def commands(page: str) -> tuple[Command, ...]:
    """All commands of a page, in its order."""
    found = [*_of_blocks(page), *_of_prose(page)]
    return tuple(sorted(found, key=lambda command: command.line))


def spans(page: str) -> Iterator[tuple[int, str]]:
    """What stands between backticks, outside of blocks."""
    for number, line in prose(page):
        yield from ((number, text) for text in _SPAN.findall(line))


def links(page: str) -> Iterator[tuple[int, str]]:
    for number, line in prose(page):
        yield from ((number, target) for target in _LINK.findall(_SPAN.sub("", line)))


def anchors(page: str) -> set[str]:
    """Of its headings, as forges make them."""
    headings = (line.lstrip("#").strip() for _, line in prose(page) if re.match(r"#{1,6} ", line))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def program_of(line: str) -> str:
    """The program that a line runs, as root or not; empty if it is no command."""
    found = [word.removeprefix(".venv/bin/") for word in line.removeprefix("sudo ").split(maxsplit=1)]
    return found[0] if found and found[0] in PROGRAMS else ""


def _blocks(page: str) -> Iterator[Block]:
    lines, at = lines_of(page), 0
    in_list = False
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if fence:
            end = next(n for n in range(at + 1, len(lines)) if lines[n].strip() == fence[1])
            yield Block(page, at + 2, fence[2], "\n".join(lines[at + 1 : end]))
            at = end
        elif lines[at].startswith("    ") and not in_list and (at == 0 or not lines[at - 1].strip()):
            end = next((n for n in range(at, len(lines)) if not lines[n].startswith("    ")), len(lines))
            yield Block(page, at + 1, "", "\n".join(line[4:] for line in lines[at:end]))
            at = end - 1
        elif lines[at].strip():
            in_list = bool(_LIST.match(lines[at])) or (in_list and lines[at].startswith(" "))
        at += 1


def _of_blocks(page: str) -> Iterator[Command]:
    for block in blocks(page):
        text = block.text.replace("\\\n", "  ")
        first = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
        if block.language not in ("", "sh", "bash", "console") or not program_of(first):
            continue
        for offset, line in enumerate(text.splitlines()):
            bare = re.sub(r"(^|\s{2,})#\s.*", "", line).strip()
            for part in filter(None, (part.strip() for part in bare.split("&&"))):
                yield Command(page, block.line + offset, part, "block")


def _of_prose(page: str) -> Iterator[Command]:
    for number, line in prose(page):
        cell = re.match(r"\| (.*?)(?<!\\) \|", line)
        for part, place in ((cell[1], "table"), (line[cell.end() :], "prose")) if cell else ((line, "prose"),):
            for text in _SPAN.findall(part):
                if program_of(text) and " " in text:
                    yield Command(page, number, text.replace("\\|", "|"), place)
