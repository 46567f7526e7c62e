"""The lines that a person types, or that come through a pipe."""

import sys
from collections.abc import Iterator

from .output import err, out

_PROMPT = "> "


def lines() -> Iterator[str]:
    """Each line until the end of the input. In a terminal Ctrl-C drops the line and Ctrl-D ends."""
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    prompt = _prompt()
    while True:
        try:
            yield input(prompt)
        except EOFError:
            out.out("", highlight=False)
            return
        except KeyboardInterrupt:
            err.print("\nCtrl-D ends", markup=False, highlight=False)


def _prompt() -> str:
    """What input() shows. Readline must be told which characters take no room, else it loses count of the columns."""
    try:
        import readline  # noqa: F401  # gives the history and editing of lines
    except ImportError:
        return _PROMPT
    in_colour = sys.stdout.isatty() and out.color_system is not None and not out.no_color
    return f"\x01\x1b[1m\x02{_PROMPT}\x01\x1b[0m\x02" if in_colour else _PROMPT
