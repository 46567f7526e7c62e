"""Exchange: runs a job in the engine and answers with one JSON object or a stream of server-sent events."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..daemon.messages import Submit, Token, TokenLogprobs, Usage
from .chat.events import ChatEvent
from .errors import kind_of
from .framing import OPENAI, Framing
from .generation import Generation, Piece, Reading, StopReason
from .record import Record
from .sender import ClientGone, Sender
from .service import Service

logger = logging.getLogger(__name__)

T = TypeVar("T")

SSE_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # the latter for nginx


@dataclass(frozen=True, slots=True)
class Answer:
    """One complete choice; starts: where each token's own text begins, in characters. The rest: see `Piece`."""

    text: str
    tokens: tuple[Token, ...]
    starts: tuple[int, ...]
    finish_reason: StopReason
    events: tuple[ChatEvent, ...] = ()
    prompt: tuple[TokenLogprobs | None, ...] | None = None
    stop_token: Token | None = None
    stop_reason: str | int | None = None


class Encoder(Protocol):
    """Writes one endpoint's JSON. One object serves one request and may keep state between chunks."""

    def opening(self) -> list[dict[str, Any]]:
        """The chunks that come first, once the first token is there."""
        ...

    def chunks(self, piece: Piece) -> list[dict[str, Any]]:
        """The chunks of a piece."""
        ...

    def closing(self, usage: Usage) -> list[dict[str, Any]]:
        """The chunks that close the stream, after the end of every choice."""
        ...

    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A checked request, ready for the engine. `submits` hold choices_per_prompt choices of each prompt in turn.

    readings: one for each submit, where its text has to be understood.
    """

    submits: tuple[Submit, ...]
    choices_per_prompt: int
    stream: bool
    encoder: Encoder
    framing: Framing = OPENAI
    readings: tuple[Reading, ...] = ()


async def events(
    generation: Generation, job: Job, ping_interval: float, request_id: str
) -> AsyncGenerator[bytes, None]:
    """The frames of a stream. Whatever fails, the last one is `done`, after one error object if there was an error."""
    framing = job.framing
    try:
        opened = framing.opens_at_once
        if opened:
            yield b"".join(map(framing.frame, job.encoder.opening()))
        async with aclosing(generation.pieces(ping_interval)) as pieces:
            async for piece in pieces:
                if piece is None:
                    yield framing.ping
                    continue
                chunks = job.encoder.chunks(piece)
                # Clients take the first chunk with choices as the first token, so the opening waits for it.
                chunks = chunks if opened else job.encoder.opening() + chunks
                if chunks:
                    yield b"".join(map(framing.frame, chunks))
                opened = True
        closing = job.encoder.closing(generation.usage(job.choices_per_prompt))
        if closing:
            yield b"".join(map(framing.frame, closing))
    except Exception as error:
        _log(request_id, error)
        yield framing.frame(framing.error(error))
    yield framing.done


async def collect(generation: Generation, job: Job, ping_interval: float) -> bytes:
    """The body of an answer that is not streamed."""
    pieces: list[list[Piece]] = [[] for _ in generation.choices]
    async with aclosing(generation.pieces(ping_interval)) as arriving:
        async for piece in arriving:
            if piece is not None:
                pieces[piece.index].append(piece)
    answers = [_join(parts) for parts in pieces]
    usage = generation.usage(job.choices_per_prompt)
    # In a thread, since the log-probabilities of a long answer are many objects.
    return await asyncio.to_thread(lambda: orjson.dumps(job.encoder.whole(answers, usage)))


def _join(parts: Sequence[Piece]) -> Answer:
    last = parts[-1]
    reason = last.finish_reason
    assert reason is not None  # pieces() ends only when each choice has
    tokens = tuple(token for part in parts for token in part.tokens)
    starts = tuple(start for part in parts for start in part.starts)
    events = tuple(event for part in parts for event in part.events)
    prompt = next((part.prompt for part in parts if part.prompt is not None), None)
    text = "".join(part.text for part in parts)
    return Answer(text, tokens, starts, reason, events, prompt, last.stop_token, last.stop_reason)


def _log(request_id: str, error: Exception) -> None:
    if kind_of(error).status == 500:
        logger.error("request %s failed in its stream", request_id, exc_info=error)
    else:
        logger.info("request %s ended in an error: %s", request_id, error)


class Exchange(Response):
    """Submits when called, so that a refusal is still a real status, and aborts when the client leaves."""

    def __init__(self, service: Service, job: Job) -> None:
        super().__init__()
        self.service = service
        self.job = job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, job, state = self.service, self.job, scope["state"]
        record: Record = state["record"]
        record.stream, record.choices = job.stream, len(job.submits)
        submits = [replace(submit, tenant=state.get("key_name", "")) for submit in job.submits]
        try:
            async with Generation(service.client, service.tokenizer, submits, job.readings) as generation:
                try:
                    run = self._stream if job.stream else self._whole
                    await unless_gone(receive, run(generation, scope, receive, send))
                finally:
                    record.usage = generation.usage(job.choices_per_prompt)
                    if generation.first_at is not None:
                        record.first_output_s = generation.first_at - state["began"]
                    if generation.failed:
                        record.outcome = "failed"
        except ClientGone as gone:
            record.outcome = "gone"
            logger.info("request %s: %s", state["request_id"], gone)

    async def _whole(self, generation: Generation, scope: Scope, receive: Receive, send: Send) -> None:
        limits = self.service.limits
        body = await collect(generation, self.job, limits.ping_interval)
        with Sender(send, limits.write_timeout) as sender:
            await sender.start(Response(body, media_type="application/json").raw_headers)
            await sender.body(body, more=False)

    async def _stream(self, generation: Generation, scope: Scope, _receive: Receive, send: Send) -> None:
        limits = self.service.limits
        headers = Response(headers=SSE_HEADERS, media_type=self.job.framing.media_type).raw_headers
        frames = events(generation, self.job, limits.ping_interval, scope["state"]["request_id"])
        async with aclosing(frames):
            with Sender(send, limits.write_timeout) as sender:
                await sender.start([(name, value) for name, value in headers if name != b"content-length"])
                async for data in frames:
                    await sender.body(data, more=True)
                await sender.body(b"", more=False)


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, but cancel it and raise ClientGone once the client has left."""
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_until_gone(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone("the client left")
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
