"""One request and when the pieces of its answer came."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from .events import EventReader, EventTooLargeError

PATH = "/v1/chat/completions"
_SAID = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls")
_GRACE_S = 1.0  # for the connection to end after the answer did
_LONGEST_DETAIL = 200


@dataclass(slots=True)
class Answer:
    """Times in seconds of the event loop's clock.

    due: when the request was to be sent. arrivals: of what came of the answer; events that came at once are one. last:
    of the last text or finish reason. end: of the whole answer. tokens, prompt_tokens, cached_tokens: the server's own
    counts, None if it gives none. failure: what went wrong in a few words, and in detail.
    """

    due: float
    end: float = 0.0
    last: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finished: bool = False
    done: bool = False
    failure: str | None = None
    detail: str = ""

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def add(self, event: bytes, now: float) -> None:
        """One event of the stream. Raises FailedError."""
        if event == b"[DONE]":
            self.done = True
            return
        try:
            chunk = json.loads(event)
        except ValueError as error:
            raise FailedError("an event that is no JSON", str(error)) from error
        if not isinstance(chunk, dict):
            raise FailedError("an event that is no object", event.decode("utf-8", "replace"))
        if chunk.get("error"):
            raise FailedError("an error in the stream", _message(chunk))
        if isinstance(usage := chunk.get("usage"), dict):
            self._count(usage)
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else []:
            if isinstance(choice, dict):
                self._choose(choice, now)

    def _choose(self, choice: Mapping[str, Any], now: float) -> None:
        given = choice.get("delta")
        delta = given if isinstance(given, dict) else {}
        said = any(delta.get(name) for name in _SAID)
        if isinstance(content := delta.get("content"), str):
            self.pieces.append(content)
        if said and (not self.arrivals or self.arrivals[-1] != now):
            self.arrivals.append(now)
        self.finished |= choice.get("finish_reason") is not None
        if said or choice.get("finish_reason") is not None:
            self.last = now

    def _count(self, usage: Mapping[str, Any]) -> None:
        details = usage.get("prompt_tokens_details")
        self.tokens = _number(usage.get("completion_tokens"))
        self.prompt_tokens = _number(usage.get("prompt_tokens"))
        self.cached_tokens = _number(details.get("cached_tokens")) if isinstance(details, dict) else None


class FailedError(Exception):
    """A request has no whole answer. what: in a few words, the same for all that fail alike."""

    def __init__(self, what: str, detail: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.detail = detail


async def ask(client: httpx.AsyncClient, body: Mapping[str, Any], timeout_s: float, due: float | None = None) -> Answer:
    """Send a request that asks for a stream, and read that. Raises nothing: what goes wrong is in the answer.

    due: since when its client waits; now by default.
    """
    now = asyncio.get_running_loop().time
    answer = Answer(now() if due is None else due)
    try:
        await _exchange(client, body, timeout_s, answer)
    except FailedError as error:
        answer.failure, answer.detail = error.what, error.detail
    except TimeoutError:
        answer.failure = "timed out"
    except httpx.ConnectError as error:
        answer.failure, answer.detail = "no connection", str(error)
    except httpx.HTTPError as error:
        answer.failure, answer.detail = "the connection broke off", str(error) or type(error).__name__
    except EventTooLargeError as error:
        answer.failure, answer.detail = "no stream of events", str(error)
    if answer.done and not answer.arrivals:
        answer.failure = answer.failure or "no text"
    elif answer.done:
        answer.failure = None  # whatever became of the connection afterwards
    answer.end = answer.end or now()
    answer.detail = _shown(answer.detail, client)
    return answer


async def _exchange(client: httpx.AsyncClient, body: Mapping[str, Any], timeout_s: float, answer: Answer) -> None:
    async with asyncio.timeout(timeout_s) as timer, aclosing(await _send(client, body)) as response:
        if response.status_code != 200:
            raise FailedError(f"status {response.status_code}", _body_message(await response.aread()))
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            raise FailedError("no stream of events", response.headers.get("content-type", "no content type"))
        await _read(response, answer, timer)


async def _send(client: httpx.AsyncClient, body: Mapping[str, Any]) -> httpx.Response:
    """The head of the response. A connection may end just as it is used again, so this is tried twice."""
    request = client.build_request("POST", PATH, json=body)
    with suppress(httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
        return await client.send(request, stream=True)
    return await client.send(request, stream=True)


async def _read(response: httpx.Response, answer: Answer, timer: asyncio.Timeout) -> None:
    reader, now = EventReader(), asyncio.get_running_loop().time
    async for piece in response.aiter_bytes():
        came = now()
        for event in reader.feed(piece):
            _add(answer, event, came, timer)
    came = now()
    for event in reader.end():
        _add(answer, event, came, timer)
    if not (answer.done or answer.finished):
        raise FailedError("the connection broke off", "it ended before the answer did")
    answer.end = answer.end or came
    answer.done = True


def _add(answer: Answer, event: bytes, came: float, timer: asyncio.Timeout) -> None:
    """An event; the connection is read to its end after the last one, so that it can be used again."""
    if answer.done:
        return
    answer.add(event, came)
    if answer.done:
        answer.end = came
        timer.reschedule(asyncio.get_running_loop().time() + _GRACE_S)


def _body_message(body: bytes) -> str:
    try:
        return _message(json.loads(body))
    except ValueError:
        return body[:_LONGEST_DETAIL].decode("utf-8", "replace")


def _message(value: Any) -> str:
    """The text of an error object, whichever of the usual forms it has."""
    error = value.get("error", value) if isinstance(value, dict) else value
    return str(error.get("message", error) if isinstance(error, dict) else error)


def _shown(detail: str, client: httpx.AsyncClient) -> str:
    """Some servers repeat the key in their refusals."""
    key = client.headers.get("authorization", "").removeprefix("Bearer ")
    text = detail.replace(key, "[key]") if key else detail
    return "".join(sign if sign.isprintable() else " " for sign in text)[:_LONGEST_DETAIL]


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None
