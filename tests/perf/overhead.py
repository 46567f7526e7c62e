"""What the HTTP side costs: python tests/perf/overhead.py [--streams 64] [--rate 2000] [--seconds 10]

1. Streams: an engine that only plays gives each stream a token at the same time, so many in a second in all. Told are
   the share of one core that the event loop takes, what of the tokens is lost against the given rate, and how long a
   token takes to the client's socket as a frame.
2. Health: how long /health takes while the real engine computes a prompt whose steps free the interpreter's lock.

The clients run in a process of their own.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # also as the clients' process
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import uvicorn
from isotherm.api.service import Service
from isotherm.daemon.cli.connection import Connection
from isotherm.daemon.mailbox import Mailbox, wake
from isotherm.daemon.messages import Finished, Submit, Token, Usage
from support.api_service import app_of, make_service, wait_until
from support.engine_runs import make_engine, running
from support.fake_runner import FakeRunner
from support.scripted_engine import VOCAB_SIZE, ScriptedEngine

WARM_UP = 0.2  # of the tokens: what comes first is not counted
PROBES = 600


class PacedEngine(ScriptedEngine):
    """Gives a token to all streams at once, in a thread, as steps of a model do; notes when."""

    def __init__(self, streams: int, rate: float, tokens: int) -> None:
        super().__init__(script=lambda submit: [])
        self.max_context = 10_000_000
        self.times: list[float] = []
        self._streams, self._pause, self._tokens = streams, streams / rate, tokens
        self._mailboxes: list[Mailbox] = []
        self._thread = threading.Thread(target=self._play)

    def submit(self, submit: Submit) -> Mailbox:
        mailbox = Mailbox(submit.request_id, asyncio.get_running_loop())
        self._mailboxes.append(mailbox)
        if len(self._mailboxes) == self._streams:
            self._thread.start()
        return mailbox

    def _play(self) -> None:
        begin = time.monotonic() + 0.5
        for number in range(self._tokens):
            time.sleep(max(0.0, begin + number * self._pause - time.monotonic()))
            self.times.append(time.monotonic())
            wake([box for box in self._mailboxes if box.put(Token(box.request_id, 97))])
        usage = Usage(prompt_tokens=1, cached_tokens=0, completion_tokens=self._tokens)
        ends = [Finished(request_id=box.request_id, reason="length", usage=usage) for box in self._mailboxes]
        wake([box for box, end in zip(self._mailboxes, ends, strict=True) if box.put(end)])


class BusyRunner(FakeRunner):
    """Each step computes for a quarter of a second without the interpreter's lock."""

    def execute(self, plan: Any) -> Any:
        end = time.monotonic() + 0.25
        while time.monotonic() < end:
            self._factors @ self._factors
        return super().execute(plan)

    _factors = np.ones((600, 600), np.float32)


@contextmanager
def serving(service: Service) -> Iterator[tuple[int, list[float]]]:
    """As the daemon does it. The port, and a list that gets the CPU seconds of the event loop's thread when asked by
    a request to /version."""
    app, cpu = app_of(service), []

    async def timed(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == "/version":
            cpu.append(time.thread_time())
        await app(scope, receive, send)

    config = uvicorn.Config(timed, http=Connection, log_level="critical", lifespan="off", loop="uvloop", port=0)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield server.servers[0].sockets[0].getsockname()[1], cpu
    finally:
        server.should_exit = True
        thread.join()


def client(*args: object) -> Any:
    """What the clients' process has to tell."""
    told = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--as", json.dumps(args)],
        check=True,
        stdout=subprocess.PIPE,
        timeout=300,
    )
    return json.loads(told.stdout)


def measure_streams(streams: int, rate: float, seconds: float, chat: bool) -> None:
    tokens = int(rate * seconds / streams)
    engine = PacedEngine(streams, rate, tokens)
    with serving(make_service(engine)) as (port, cpu):
        told = client("streams", port, streams, tokens, chat)
    sent = np.array(engine.times)
    first = int(tokens * WARM_UP)
    late = np.concatenate([np.array(arrived)[first:] - sent[first : len(arrived)] for arrived in told["arrived"]])
    wall = max(each[-1] for each in told["arrived"]) - sent[0]
    given = tokens * streams / (tokens * engine._pause)
    got = sum(map(len, told["arrived"])) / (wall + engine._pause)
    share = (cpu[-1] - cpu[0]) / told["seconds"]
    p50, p99 = np.percentile(late, [50, 99]) * 1e3
    print(
        f"{'chat' if chat else 'completions'}: {streams} streams, {given:.0f} tokens/s given, {got:.0f} arrived "
        f"({1 - got / given:+.1%} lost); event loop {share:.1%} of a core, {share / given * 1e6:.0f} us a token; "
        f"token to frame p50 {p50:.2f} ms, p99 {p99:.2f} ms, worst {late.max() * 1e3:.1f} ms"
    )


def measure_health() -> None:
    runner = BusyRunner(vocab_size=VOCAB_SIZE, num_blocks=4000, max_context=8000, max_step_tokens=16)
    engine = make_engine(runner)
    with running(engine) as engine_client, serving(make_service(engine_client)) as (port, _):
        told = client("health", port)
        assert told["busy"], "the prompt was computed too soon"
    p50, p99 = np.percentile(np.array(told["took"]), [50, 99]) * 1e3
    print(f"/health during a prefill: p50 {p50:.2f} ms, p99 {p99:.2f} ms, worst {max(told['took']) * 1e3:.1f} ms")


async def read_streams(port: int, streams: int, tokens: int, chat: bool) -> dict[str, Any]:
    """When each token of each stream arrived."""
    begin = time.monotonic()
    arrived = await asyncio.gather(*(_read_stream(port, tokens, chat) for _ in range(streams)), _ask_cpu(port, 0.2))
    await _ask_cpu(port, 0)
    return {"arrived": arrived[:-1], "seconds": time.monotonic() - begin - 0.2}


async def _ask_cpu(port: int, after: float) -> None:
    await asyncio.sleep(after)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /version HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    await reader.read()
    writer.close()


async def _read_stream(port: int, tokens: int, chat: bool) -> list[float]:
    wish = {"messages": [{"role": "user", "content": "x"}]} if chat else {"prompt": "x"}
    reader, writer = await _post(port, "chat/completions" if chat else "completions", wish | {"max_tokens": tokens})
    times: list[float] = []
    key = b'"content":"' if chat else b'"text":"'
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            text = line.partition(key)[2].partition(b'"')[0]
            times += [time.monotonic()] * len(text)
        elif line == b"data: [DONE]\n":
            break
    writer.close()
    assert len(times) == tokens, len(times)
    return times


async def _post(port: int, path: str, wish: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps(wish | {"stream": True}).encode()
    head = f"POST /v1/{path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    writer.write(head.encode() + b"\r\n\r\n" + body)
    return reader, writer


async def probe_health(port: int) -> dict[str, Any]:
    """How long each of many requests took while a prompt was computed, and whether it was all the time."""
    prompt, writer = await _post(port, "completions", {"prompt": "x" * 7000, "max_tokens": 2})
    reader, probe = await asyncio.open_connection("127.0.0.1", port)
    took = []
    for _ in range(PROBES):
        await asyncio.sleep(0.01)
        begin = time.monotonic()
        probe.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        await reader.readuntil(b"}")
        took.append(time.monotonic() - begin)
    text = prompt._buffer  # type: ignore[attr-defined]  # what came of the prompt meanwhile
    writer.close()
    probe.close()
    return {"took": took, "busy": b"data" not in text}


def act(what: str, *args: Any) -> None:
    """In the clients' process."""
    work = {"streams": read_streams, "health": probe_health}[what]
    print(json.dumps(asyncio.run(work(*args))))


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rate", type=float, default=2000, help="tokens a second, of all streams")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--as", dest="role", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.role:
        act(*json.loads(options.role))
        return
    for chat in (True, False):
        measure_streams(options.streams, options.rate, options.seconds, chat)
    measure_health()


if __name__ == "__main__":
    main(sys.argv[1:])
