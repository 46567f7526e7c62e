"""Options that name several values, with commas between them."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from .output import ExitCode, fail

_MOST_DIGITS = 20
T = TypeVar("T")


def parts(option: str, text: str) -> list[str]:
    """What stands between commas, each once."""
    found = [part.strip() for part in text.split(",")]
    if not all(found):
        fail(f"{option} is {text!r}; name values with commas between them", ExitCode.USAGE)
    return list(dict.fromkeys(found))


def values_of(option: str, text: str | None, read: Callable[[str], T]) -> tuple[T | None, ...]:
    return (None,) if text is None else tuple(read(part) for part in parts(option, text))


def one_of(option: str, text: str, known: Sequence[str]) -> str:
    if text not in known:
        fail(f"{option} is {text.lower()!r}; choose from {', '.join(name.lower() for name in known)}", ExitCode.USAGE)
    return text


def numbers(option: str, text: str, most: int) -> tuple[int, ...]:
    named = parts(option, text)
    # Python makes no number of thousands of digits.
    if not all(part.isdecimal() and len(part) < _MOST_DIGITS and 1 <= int(part) <= most for part in named):
        fail(f"{option} is {text!r}; name numbers from 1 to {most} with commas, such as 1,4,8", ExitCode.USAGE)
    return tuple(dict.fromkeys(int(part) for part in named))
