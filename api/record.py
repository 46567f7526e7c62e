"""Record: what logs, metrics and traces are told of one HTTP request, once, when it has ended. Never a text."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from ..daemon.messages import Usage

Outcome = Literal["answered", "refused", "failed", "gone"]


@dataclass(slots=True, kw_only=True)
class Record:
    """started: seconds since the epoch. route: as the application names it, with {...} for what is left open; empty if
    there is none. status: 0 if nothing was sent. outcome: "gone" if the client left or read no more, "failed" if the
    answer broke off. first_output_s, duration_s: from the head of the request on. choices: completions that it asked
    for, 0 where it asked for none. trace: the headers by which traces are continued.
    """

    request_id: str
    method: str
    started: float
    trace: dict[str, str] = field(default_factory=dict)
    key_name: str = ""
    route: str = ""
    status: int = 0
    outcome: Outcome = "answered"
    stream: bool = False
    choices: int = 0
    usage: Usage | None = None
    first_output_s: float | None = None
    duration_s: float = 0.0


Sink = Callable[[Record], None]
