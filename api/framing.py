"""Framing: how a dialect lays its objects on the wire."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from .errors import error_body


def data_frame(data: Mapping[str, Any]) -> bytes:
    """A server-sent event without a name. LF only: some clients split on a blank LF line."""
    return b"data: " + orjson.dumps(data) + b"\n\n"


def named_frame(data: Mapping[str, Any]) -> bytes:
    """A server-sent event that is named as its object's "type"."""
    return b"event: " + str(data["type"]).encode() + b"\n" + data_frame(data)


def line_frame(data: Mapping[str, Any]) -> bytes:
    """A line of JSON."""
    return orjson.dumps(data) + b"\n"


@dataclass(frozen=True, slots=True)
class Framing:
    """frame: an object as bytes. ping: what says that the server is alive; empty where a dialect has nothing. done:
    what comes last. error: the object that tells of an error, in a stream or as a whole body. opens_at_once: a stream's
    opening does not wait for the first token, because clients of the dialect want it before any ping."""

    media_type: str
    frame: Callable[[Mapping[str, Any]], bytes]
    ping: bytes
    done: bytes
    error: Callable[[Exception], Mapping[str, Any]]
    opens_at_once: bool = False


OPENAI = Framing("text/event-stream", data_frame, b": ping\n\n", b"data: [DONE]\n\n", error_body)
