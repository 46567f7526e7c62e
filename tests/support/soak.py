"""Mixed traffic on the whole daemon but its model: clients that ask, leave, flood, send rubbish and read slowly."""

import asyncio
import gc
import os
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import orjson
import psutil
import uvicorn
from isotherm.api.http_metrics import HttpMetrics
from isotherm.api.record import Record
from isotherm.api.service import Limits
from isotherm.daemon.chat_template import ChatTemplate
from isotherm.daemon.cli.connection import Connection
from isotherm.daemon.config import key_digest
from isotherm.daemon.engine import Engine
from isotherm.daemon.mailbox import Mailbox
from isotherm.daemon.messages import Submit
from support.api_service import CHAT, COMPLETIONS, app_of, make_service, wait_until
from support.engine_runs import assert_nothing_left, make_engine, running
from support.fake_runner import FakeRunner
from support.scripted_engine import VOCAB_SIZE
from support.soak_wishes import HERMES, MESSAGES, OLLAMA_CHAT, RESPONSES, Ask, Wishes, ends_well

KEYS = ("editor", "agent", "guest")
LIMITS = Limits(max_body=20_000, body_timeout=0.5, ping_interval=0.05, write_timeout=0.5, max_responses=30)
FINE = {"200", "400", "401", "404", "405", "408", "413", "429"}  # what a client may be answered
RUBBISH = (
    b"",
    b"{",
    b"[]",
    b'{"messages": 5}',
    b'{"messages": [], "n": -1}',
    b'{"prompt": "x", "temperature": "hot"}',
    b'{"prompt": [], "max_tokens": 1e99}',
    b'{"prompt": "\\ud800"}',
    b"\xff" * 500,
    b"[" * 5000,
    b'{"prompt": "' + b"x" * 30_000 + b'"}',
)


@dataclass
class Report:
    """What was seen. statuses: of HTTP answers. good: answers with 200 by path. accepted, ended: of the engine.
    resident: bytes, at equal distances from the first third on."""

    statuses: Counter[str] = field(default_factory=Counter)
    good: Counter[str] = field(default_factory=Counter)
    acts: Counter[str] = field(default_factory=Counter)
    accepted: int = 0
    ended: int = 0
    records: int = 0
    preemptions: int = 0
    resident: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def grown(self) -> int:
        """From the first to the least of the last three, in bytes."""
        return min(self.resident[-3:]) - self.resident[0]


class Soak:
    """`clients` of them at once, for `seconds`, and until they have done `least` acts, since a machine may be slow. All
    that they do follows from `seed`, when they do it does not."""

    def __init__(self, seconds: float, clients: int, seed: int = 0, least: int = 0) -> None:
        self._seconds, self._clients, self._random, self._least = seconds, clients, random.Random(seed), least
        self._wishes = Wishes(self._random)
        self.report = Report()
        self._port = 0

    def run(self) -> Report:
        """Raises AssertionError if anything is left when all have gone."""
        runner = FakeRunner(num_blocks=60, vocab_size=VOCAB_SIZE, max_context=200, latency_s=0.002)
        engine = make_engine(runner, max_running=8, max_queued=30)
        with running(engine):
            self._count_accepted(engine)
            with self._serving(engine):
                asyncio.run(self._live())
                assert_nothing_left(engine)
                wait_until(lambda: len(psutil.Process().net_connections("tcp")) <= self._connections_before)
            self.report.preemptions = engine.stats().preemptions
            samples = next(f for f in engine.metrics._registry.collect() if f.name == "isotherm_request_finished")
            self.report.ended = int(sum(s.value for s in samples.samples if s.name.endswith("_total")))
            assert engine._inbox.unended() == []
        return self.report

    def _count_accepted(self, engine: Engine) -> None:
        inner = engine.client.submit

        def submit(wish: Submit) -> Mailbox:
            mailbox = inner(wish)
            self.report.accepted += 1
            return mailbox

        engine.client.submit = submit  # type: ignore[method-assign]

    @contextmanager
    def _serving(self, engine: Engine) -> Iterator[None]:
        metrics = HttpMetrics()
        engine.metrics.add(metrics)

        def note(record: Record) -> None:
            self.report.records += 1
            self.report.statuses[str(record.status)] += 1
            if record.status == 200:
                self.report.good[record.route] += 1
            if record.outcome == "failed":
                self.report.problems.append(f"{record.route} failed with {record.status}")

        digests = {key_digest(key): key for key in KEYS}
        service = make_service(
            engine.client,
            metrics=engine.metrics,
            api_keys=frozenset(digests),
            key_names=digests,
            limits=LIMITS,
            sinks=(metrics, note),
            chat_template=ChatTemplate(HERMES),
        )
        listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        config = uvicorn.Config(app_of(service), http=Connection, log_level="critical", lifespan="off", loop="uvloop")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            wait_until(lambda: server.started)
            self._port = listener.getsockname()[1]
            self._connections_before = len(psutil.Process().net_connections("tcp"))
            yield
        finally:
            server.should_exit = True
            thread.join()
            listener.close()

    async def _live(self) -> None:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        clients = [asyncio.create_task(self._client(begin + self._seconds)) for _ in range(self._clients)]
        await asyncio.sleep(self._seconds / 3)
        looks = max(3, min(9, int(self._seconds / 2)))
        for _ in range(looks):
            self.report.resident.append(_resident())
            await asyncio.sleep(self._seconds * 2 / 3 / looks)
        await asyncio.gather(*clients)
        self.report.resident.append(_resident())

    async def _client(self, end: float) -> None:
        acts: tuple[Callable[[], Awaitable[None]], ...] = (
            self.whole,
            self.stream,
            self.stream,
            self.leave,
            self.leave,
            self.read_slowly,
            self.rubbish,
            self.stop_sending,
            self.flood,
            self.aside,
            self.aside,
            self.look,
            self.hold_connections,
        )
        while asyncio.get_running_loop().time() < end or self.report.acts.total() < self._least:
            act = self._random.choice(acts)
            self.report.acts[act.__name__] += 1
            try:
                await asyncio.wait_for(act(), 120)
            except (ConnectionError, asyncio.IncompleteReadError):
                pass  # the server closes on those who break its rules
            except TimeoutError:
                self.report.problems.append(f"{act.__name__} had no end")

    async def whole(self) -> None:
        """A plain request, read to its end."""
        ask = self._wishes.next(stream=False)
        text = await self._answer(ask)
        if ask.path == RESPONSES and _is_good(text):
            self._wishes.responses.append(orjson.loads(text.partition(b"\r\n\r\n")[2])["id"])

    async def stream(self) -> None:
        """A stream, which must end as streams of its dialect end."""
        ask = self._wishes.next(stream=True)
        text = await self._answer(ask)
        if _is_good(text) and not ends_well(ask.path, text):
            self.report.problems.append(f"a stream of {ask.path} ended in {text[-200:]!r}")

    async def aside(self) -> None:
        """What draws no token, or forgets a response."""
        if self._wishes.responses and self._random.random() < 0.2:
            await self._look_at(f"{RESPONSES}/{self._wishes.responses[0]}", "agent", method="DELETE")
        else:
            await self._answer(self._wishes.aside())

    async def leave(self) -> None:
        """Go away at any moment, in one of three ways."""
        reader, writer = await self._ask(self._wishes.next(stream=self._random.random() < 0.6, max_tokens=150))
        await asyncio.sleep(self._random.choice((0, 0.001, 0.01, 0.05, 0.2)))
        way = self._random.randrange(3)
        if way == 0:
            writer.close()
        elif way == 1:
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        else:
            writer.write_eof()
            await reader.read()
            writer.close()

    async def read_slowly(self) -> None:
        """Leave what comes unread for longer than the server waits."""
        ask = self._wishes.completion(stream=True, max_tokens=150)
        _, writer = await self._ask(Ask(ask.path, ask.body | {"logprobs": 5}), receive=2048)
        writer.transport.pause_reading()
        await asyncio.sleep(self._random.choice((0.1, 1.0)))
        writer.transport.abort()

    async def rubbish(self) -> None:
        """What is no request."""
        path = self._random.choice((CHAT, COMPLETIONS, RESPONSES, MESSAGES, OLLAMA_CHAT, "/v1/embeddings"))
        reader, writer = await self._post(path, self._random.choice(RUBBISH))
        await reader.read()
        writer.close()

    async def stop_sending(self) -> None:
        """A body that never ends; the sender waits for an answer, or not."""
        reader, writer = await self._connect()
        writer.write(self._head(CHAT, 100) + b'{"messages"')
        if self._random.random() < 0.5:
            await reader.read()
        writer.close()

    async def flood(self) -> None:
        """Many at once."""
        await asyncio.gather(*(self._one_of_many() for _ in range(12)), return_exceptions=True)

    async def _one_of_many(self) -> None:
        await self._answer(self._wishes.next(stream=True, max_tokens=4))

    async def look(self) -> None:
        """What operators and strangers do."""
        for path, key in (("/metrics", "editor"), ("/health", ""), ("/version", ""), ("/nowhere", "agent")):
            await self._look_at(path, key)
        if self._wishes.responses:
            await self._look_at(f"{RESPONSES}/{self._wishes.responses[-1]}", "guest")

    async def _look_at(self, path: str, key: str, method: str = "GET") -> None:
        reader, writer = await self._connect()
        writer.write(f"{method} {path} HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\nconnection: close\r\n\r\n".encode())
        await reader.read()
        writer.close()

    async def hold_connections(self) -> None:
        """Connections that say nothing."""
        held = [await self._connect() for _ in range(10)]
        await asyncio.sleep(0.1)
        for _, writer in held:
            writer.close()

    async def _answer(self, ask: Ask) -> bytes:
        """The whole of it, head included."""
        reader, writer = await self._ask(ask)
        text = await reader.read()
        writer.close()
        return text

    async def _ask(self, ask: Ask, receive: int | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await self._post(ask.path, orjson.dumps(ask.body), receive)

    async def _post(
        self, path: str, body: bytes, receive: int | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await self._connect(receive)
        writer.write(self._head(path, len(body)) + body)
        return reader, writer

    async def _connect(self, receive: int | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        sock = socket.socket()
        if receive is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self._port))
        return await asyncio.open_connection(sock=sock)

    def _head(self, path: str, length: int) -> bytes:
        key = self._random.choice(KEYS)
        return (
            f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
            f"authorization: Bearer {key}\r\ncontent-length: {length}\r\n\r\n"
        ).encode()


def _is_good(answer: bytes) -> bool:
    return b" 200 " in answer.partition(b"\r\n")[0]


def _resident() -> int:
    gc.collect()
    return int(psutil.Process(os.getpid()).memory_info().rss)
