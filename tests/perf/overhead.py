"""What the HTTP side costs: python tests/perf/overhead.py [--streams 64] [--rate 2000] [--seconds 10] [--model M.gguf]

1. Streams: an engine that only plays gives each stream a token at the same time, so many in a second in all. Told are
   what of the tokens is lost against the given rate, the share of one core that the event loop's thread takes, and how
   long a token takes to the client as a frame. Engine and event loop have one core together.
2. Health: how long /health takes while the real engine computes a prompt. Without --model it is one whose steps only
   free the interpreter's lock, else a daemon's own, on as many cores as there are; then also while it tokenises a text
   that is far too long.

The clients run in a process of their own, where there are several cores on the others.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

if __name__ == "__main__":  # also as the clients' process
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.path.insert(0, str(Path(__file__).parents[1]))

import httpx
import numpy as np
import uvicorn
from isotherm.api.service import Service
from isotherm.daemon.cli.connection import Connection
from isotherm.daemon.mailbox import Mailbox, wake
from isotherm.daemon.messages import Finished, Submit, Token, Usage
from support.api_service import app_of, make_service, wait_until
from support.daemon_process import running as daemon
from support.engine_runs import make_engine, running
from support.fake_runner import FakeRunner
from support.scripted_engine import VOCAB_SIZE, ScriptedEngine

WARM_UP = 0.2  # of the tokens: what comes first is not counted
PROBES = 600
PROMPT_TOKENS, TEXT_BYTES = 30_000, 400_000  # of the real daemon, if its model takes so many


class PacedEngine(ScriptedEngine):
    """Gives a token to all streams at once, in a thread, as steps of a model do; notes when, and what CPU time the
    event loop's thread has had by then."""

    def __init__(self, streams: int, rate: float, tokens: int) -> None:
        super().__init__(script=lambda submit: [])
        self.max_context = 10_000_000
        self.times: list[float] = []
        self.cpu: list[float] = []
        self._streams, self._pause, self._tokens = streams, streams / rate, tokens
        self._mailboxes: list[Mailbox] = []
        self._thread = threading.Thread(target=self._play)

    def submit(self, submit: Submit) -> Mailbox:
        mailbox = Mailbox(submit.request_id, asyncio.get_running_loop())
        self._mailboxes.append(mailbox)
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        if len(self._mailboxes) == self._streams:
            self._thread.start()
        return mailbox

    def _play(self) -> None:
        begin = time.monotonic() + 0.5
        for number in range(self._tokens):
            time.sleep(max(0.0, begin + number * self._pause - time.monotonic()))
            self.cpu.append(time.clock_gettime(self._clock))
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
def serving(service: Service) -> Iterator[int]:
    """As the daemon does it, on the port that it yields."""
    config = uvicorn.Config(
        app_of(service), http=Connection, log_level="critical", lifespan="off", loop="uvloop", port=0
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def client(*args: object) -> Any:
    """What the clients' process has to tell."""
    told = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--as", "-"],
        input=json.dumps(args).encode(),
        check=True,
        stdout=subprocess.PIPE,
        timeout=300,
    )
    return json.loads(told.stdout)


def measure_streams(streams: int, rate: float, seconds: float, chat: bool) -> None:
    tokens = int(rate * seconds / streams)
    engine = PacedEngine(streams, rate, tokens)
    with serving(make_service(engine)) as port:
        told = client("streams", port, streams, tokens, chat)
    sent = np.array(engine.times)
    first = int(tokens * WARM_UP)
    late = np.concatenate([np.array(arrived)[first:] - sent[first : len(arrived)] for arrived in told["arrived"]])
    wall = max(each[-1] for each in told["arrived"]) - sent[0]
    given = tokens * streams / (tokens * engine._pause)
    got = sum(map(len, told["arrived"])) / (wall + engine._pause)
    share = (engine.cpu[-1] - engine.cpu[first]) / (sent[-1] - sent[first])
    p50, p99 = np.percentile(late, [50, 99]) * 1e3
    print(
        f"{'chat' if chat else 'completions'}: {streams} streams, {given:.0f} tokens/s given, {got:.0f} arrived "
        f"({1 - got / given:+.1%} lost); event loop {share:.1%} of a core, {share / given * 1e6:.0f} us a token; "
        f"token to frame p50 {p50:.2f} ms, p99 {p99:.2f} ms, worst {late.max() * 1e3:.1f} ms"
    )


def measure_health() -> None:
    runner = BusyRunner(vocab_size=VOCAB_SIZE, num_blocks=4000, max_context=8000, max_step_tokens=16)
    engine = make_engine(runner)
    with running(engine) as engine_client, serving(make_service(engine_client)) as port:
        tell_health("a prefill", client("health", port, {"prompt": "x" * 7000}, PROBES))


def measure_health_of(model: Path) -> None:
    """A daemon of its own on that model."""
    draw = random.Random(0)
    words = [draw.choice(("stone", "river", "light", "seven", "paper", "north")) for _ in range(TEXT_BYTES // 6)]
    with TemporaryDirectory() as folder, daemon(Path(folder), model) as served:
        port = int(served.url.rpartition(":")[2])
        text, tokens = client("text", port, " ".join(words), PROMPT_TOKENS)
        tell_health(f"a prefill of {tokens} tokens", client("health", port, {"prompt": text}, PROBES))
        tell_health(f"tokenising {TEXT_BYTES // 1000} kB", client("refused", port, {"prompt": " ".join(words)}))


def tell_health(during: str, told: dict[str, Any]) -> None:
    assert told["busy"], "it was over too soon"
    p50, p99 = np.percentile(np.array(told["took"]), [50, 99]) * 1e3
    worst = max(told["took"]) * 1e3
    print(
        f"/health during {during}: {len(told['took'])} times, p50 {p50:.2f} ms, p99 {p99:.2f} ms, worst {worst:.1f} ms"
    )


async def read_streams(port: int, streams: int, tokens: int, chat: bool) -> dict[str, Any]:
    """When each token of each stream arrived."""
    return {"arrived": await asyncio.gather(*(_read_stream(port, tokens, chat) for _ in range(streams)))}


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


async def cut_text(port: int, text: str, tokens: int) -> tuple[str, int]:
    """The beginning of a text that has so many tokens, or nearly as many as the model takes."""
    told = json.loads(await _whole(port, "/tokenize", {"prompt": text[:20_000]}))
    tokens = min(tokens, told["max_model_len"] - 100)
    return text[: 20_000 * tokens // told["count"]], tokens


async def probe_health(port: int, wish: dict[str, Any], probes: int) -> dict[str, Any]:
    """How long each of many requests took while a prompt was computed. It was all the time, or there were fewer."""
    prompt, writer = await _post(port, "completions", wish | {"max_tokens": 2})
    text = prompt._buffer  # type: ignore[attr-defined]  # what has come
    took = await _probe(port, lambda done: done == probes or b"data" in text)
    assert b" 400 " not in text, text
    writer.close()
    return {"took": took, "busy": len(took) > 100}


async def probe_until_refused(port: int, wish: dict[str, Any]) -> dict[str, Any]:
    """How long each request took until a text that is too long was refused, ten times."""
    took: list[float] = []
    for _ in range(10):
        asked = asyncio.create_task(_whole(port, "/v1/completions", wish))
        took += await _probe(port, lambda _, asked=asked: asked.done())
        assert b"context_length_exceeded" in await asked, await asked
    return {"took": took, "busy": len(took) > 10}


async def _probe(port: int, over: Callable[[int], bool]) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    took: list[float] = []
    while not over(len(took)):
        await asyncio.sleep(0.01)
        begin = time.monotonic()
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        await reader.readuntil(b"}")
        took.append(time.monotonic() - begin)
    writer.close()
    return took


async def _whole(port: int, path: str, wish: dict[str, Any]) -> bytes:
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        return (await http.post(f"http://127.0.0.1:{port}{path}", json=wish)).content


def act(what: str, *args: Any) -> None:
    """In the clients' process, off the core of who serves."""
    if len(cores := sorted(range(os.cpu_count() or 1))) > 1 and len(os.sched_getaffinity(0)) == 1:
        os.sched_setaffinity(0, cores[1:])
    work = {"streams": read_streams, "health": probe_health, "refused": probe_until_refused, "text": cut_text}[what]
    print(json.dumps(asyncio.run(work(*args))))


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rate", type=float, default=2000, help="tokens a second, of all streams")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--model", type=Path, help="a GGUF file to ask a real daemon for its health")
    parser.add_argument("--as", dest="role", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.role:
        act(*json.load(sys.stdin))
        return
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:1])
    for chat in (True, False):
        measure_streams(options.streams, options.rate, options.seconds, chat)
    os.sched_setaffinity(0, cores)
    if options.model is None:
        measure_health()
    else:
        measure_health_of(options.model)


if __name__ == "__main__":
    main(sys.argv[1:])
