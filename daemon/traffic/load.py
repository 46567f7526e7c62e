"""Load: sends requests by streams or by rate, point after point."""

import asyncio
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx

from ...experts.progress import Progress
from .answer import Answer, ask
from .workload import Scale, Workload, body, plain_body, scale_of

REQUESTS_PER_STREAM, REQUESTS_OF_RATE = 8, 64
_SIZING = (16, 144)  # words
_PAUSE_S = 0.1  # of a stream after a failure, so that a server that refuses or is gone is not flooded


class LoadError(Exception):
    """The server answers no request; the message says why and what may help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """streams: numbers of requests that are open all the time. rates: requests a second instead, at random moments of
    a Poisson process. requests: how many at each of these; None is 8 for each stream, or 64 of a rate, or all that
    duration_s leaves time for. warm_up: requests before those. timeout_s: of one answer."""

    workload: Workload
    streams: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()
    requests: int | None = None
    duration_s: float | None = None
    warm_up: int = 2
    timeout_s: float = 600.0


@dataclass(slots=True, kw_only=True)
class Point:
    """The answers at one number of streams, or at one rate. started, ended: seconds of the same clock. sent: requests,
    of which some may have been cut off."""

    streams: int | None = None
    rate: float | None = None
    started: float = 0.0
    ended: float = 0.0
    sent: int = 0
    answers: list[Answer] = field(default_factory=list)


class Load:
    """One measurement. `points` holds what there is, also after it was interrupted."""

    def __init__(self, client: httpx.AsyncClient, options: LoadOptions, report: Progress) -> None:
        self.points: list[Point] = []
        self.scale: Scale | None = None  # None: the server does not count, or nothing has to be sized
        self._client = client
        self._options = options
        self._report = report
        self._numbers = count()

    async def run(self) -> None:
        """All points. Raises LoadError before the first of them."""
        options = self._options
        await self._size()
        for point in (
            *(Point(streams=streams) for streams in options.streams),
            *(Point(rate=rate) for rate in options.rates),
        ):
            await self._warm_up()
            self.points.append(point)
            point.started = point.ended = self._now()
            async with asyncio.TaskGroup() as group:
                if point.rate is None:
                    for _ in range(point.streams or 1):
                        group.create_task(self._stream(point))
                else:
                    await self._arrive(point, point.rate, group)

    async def _size(self) -> None:
        """Find how the server counts words, and whether it answers at all."""
        workload, counts = self._options.workload, []
        for place, words in enumerate(_SIZING):
            self._report("sizing prompts", place, len(_SIZING))
            answer = await ask(self._client, plain_body(workload, words, -1 - place), self._options.timeout_s)
            if answer.failure not in (None, "no text"):
                raise LoadError(_explain(answer, workload))
            counts.append((words, answer.prompt_tokens))
        if not workload.prompts:
            known = [(words, tokens) for words, tokens in counts if tokens is not None]
            self.scale = scale_of(known) if len(known) == len(_SIZING) else None

    async def _warm_up(self) -> None:
        async with asyncio.TaskGroup() as group:
            for place in range(self._options.warm_up):
                group.create_task(ask(self._client, self._request(place), self._options.timeout_s))

    async def _stream(self, point: Point) -> None:
        for place in self._requests(point):
            answer = await self._measure(point, self._request(place))
            if answer.failure is not None:
                await asyncio.sleep(_PAUSE_S)

    async def _arrive(self, point: Point, rate: float, group: asyncio.TaskGroup) -> None:
        moments, due = random.Random(f"{self._options.workload.seed} arrivals"), point.started
        for place in self._requests(point):
            due += moments.expovariate(rate)
            if not self._has_time(point, due):
                point.sent -= 1
                return
            request = self._request(place)
            await asyncio.sleep(due - self._now())
            group.create_task(self._measure(point, request, due))

    def _requests(self, point: Point) -> Iterator[int]:
        """The places of requests in the point, while more are to be sent."""
        limit = self._limit(point)
        while (limit is None or point.sent < limit) and self._has_time(point, self._now()):
            point.sent += 1
            yield point.sent - 1

    def _limit(self, point: Point) -> int | None:
        options = self._options
        if options.requests is not None or options.duration_s is not None:
            return options.requests
        return REQUESTS_OF_RATE if point.streams is None else REQUESTS_PER_STREAM * point.streams

    def _has_time(self, point: Point, moment: float) -> bool:
        duration = self._options.duration_s
        return duration is None or moment < point.started + duration

    async def _measure(self, point: Point, request: Mapping[str, Any], due: float | None = None) -> Answer:
        answer = await ask(self._client, request, self._options.timeout_s, due)
        point.answers.append(answer)
        point.ended = max(point.ended, answer.end)
        self._report(name_of(point), len(point.answers), self._limit(point) or max(point.sent, 1))
        return answer

    def _request(self, place: int) -> Mapping[str, Any]:
        return body(self._options.workload, self.scale or Scale(), next(self._numbers), place)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def name_of(point: Point) -> str:
    """A point in words."""
    if point.rate is not None:
        return f"{point.rate:g} requests/s"
    return "1 stream" if point.streams == 1 else f"{point.streams} streams"


def _explain(answer: Answer, workload: Workload) -> str:
    told = f"{answer.failure}{': ' if answer.detail else ''}{answer.detail}"
    if answer.failure in ("status 400", "status 422") and workload.ignore_eos and not workload.structured:
        return f"{told}; if it does not know ignore_eos, add --no-ignore-eos"
    if answer.failure in ("status 401", "status 403"):
        return f"{told}; name the key by --api-key-file, or in ISOTHERM_API_KEY"
    return told
