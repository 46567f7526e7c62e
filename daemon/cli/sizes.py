"""Sizes in bytes as they are typed, such as 10GiB."""

import re

_SIZE = re.compile(r"(?P<number>\d{1,9}(\.\d{1,6})?)(?P<unit>[KMGT]i?B)", re.IGNORECASE | re.ASCII)
_UNITS = {"k": 1, "m": 2, "g": 3, "t": 4}


def bytes_of(text: str) -> int | None:
    """The size, 0 with or without a unit; None for what is none."""
    match = _SIZE.fullmatch(text)
    if match is None:
        return 0 if text == "0" else None
    unit = match["unit"].lower()
    return int(float(match["number"]) * (1024 if "i" in unit else 1000) ** _UNITS[unit[0]])
