"""A server in process that answers with given bytes at given times."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

Step = bytes | float | Exception
"""Bytes to send, seconds to wait, or an error of the connection."""

ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
FINISH = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"


def sse(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def said(text: str) -> bytes:
    return sse({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})


def used(prompt: int, tokens: int, cached: int | None = None) -> bytes:
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens, **details}
    return sse({"choices": [], "usage": usage})


def words_of(body: dict[str, Any]) -> int:
    return len(body["messages"][0]["content"].split())


def answers(body: dict[str, Any], first: float = 1.0, each: float = 0.1) -> list[Step]:
    """As many tokens as asked for, one a piece; a prompt's token for each half word, and 10 around them."""
    tokens = body["max_tokens"]
    pauses = [first, *[each] * (tokens - 1)]
    pieces = [step for pause in pauses for step in (pause, said("x"))]
    return [sse(ROLE), *pieces, sse(FINISH), used(10 + 2 * words_of(body), tokens), DONE]


@dataclass
class TimedServer(httpx.AsyncBaseTransport):
    """script: the steps of an answer to a body, a whole response, or an error before there is any."""

    script: Callable[[dict[str, Any]], Sequence[Step] | httpx.Response | Exception] = answers
    bodies: list[dict[str, Any]] = field(default_factory=list)
    moments: list[float] = field(default_factory=list)
    open: int = 0
    most_open: int = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.bodies.append(body)
        self.moments.append(asyncio.get_running_loop().time())
        answer = self.script(body)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, httpx.Response):
            return answer
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=_Stream(self, answer))

    def client(self, **options: Any) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=self, base_url="http://server", **options)


@dataclass
class _Stream(httpx.AsyncByteStream):
    server: TimedServer
    steps: Sequence[Step]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.server.open += 1
        self.server.most_open = max(self.server.most_open, self.server.open)
        try:
            for step in self.steps:
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, float):
                    await asyncio.sleep(step)
                else:
                    yield step
        finally:
            self.server.open -= 1
