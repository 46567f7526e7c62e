"""keep_alive: how long clients of Ollama want a model to stay loaded after their request."""

import math
import re

from ...daemon.errors import InvalidRequestError

_PARTS = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds_of(value: float | str | None) -> float | None:
    """Seconds out of a number, or a text such as "5m" or "1h30m"; less than 0 is for good, None as the server keeps all
    models. Raises InvalidRequestError."""
    if value is None or value == "":
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = _duration(str(value))
    if math.isnan(seconds):
        raise InvalidRequestError(
            f"keep_alive is {str(value)[:80]!r}; it must be seconds, or a text such as 5m or 1h30m", "keep_alive"
        )
    return math.inf if seconds < 0 else seconds


def _duration(text: str) -> float:
    sign, rest = (-1.0, text[1:]) if text.startswith("-") else (1.0, text)
    parts = _PARTS.findall(rest)
    if "".join(number + unit for number, unit in parts) != rest or not parts:
        return math.nan
    return sign * sum(float(number) * _SECONDS[unit] for number, unit in parts)
