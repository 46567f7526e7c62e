"""Clients that leave the real engine, in every state a request can be in. Numbers in brackets: a known bug of other
servers that is tested for."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import orjson
import pytest
from isotherm.api.service import Limits
from isotherm.daemon.engine import Engine
from support.api_service import COMPLETIONS, make_service, serving, wait_until
from support.engine_runs import GatedRunner, assert_nothing_left, make_engine, running
from support.scripted_engine import VOCAB_SIZE


@contextmanager
def served(*, max_running: int = 8, num_blocks: int = 64) -> Iterator[tuple[Engine, GatedRunner, int]]:
    """An engine whose steps wait for permits: 16 tokens each, in blocks of 4."""
    runner = GatedRunner(num_blocks=num_blocks, vocab_size=VOCAB_SIZE, max_step_tokens=16)
    engine = make_engine(runner, max_running=max_running)
    with running(engine), serving(make_service(engine.client, limits=Limits(ping_interval=0.01))) as port:
        yield engine, runner, port


def ask(port: int, prompt: str, *, stream: bool = True, max_tokens: int = 20) -> socket.socket:
    body = orjson.dumps({"prompt": prompt, "stream": stream, "max_tokens": max_tokens, "ignore_eos": True})
    client = socket.create_connection(("127.0.0.1", port))
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return client


def half_close(client: socket.socket) -> None:
    client.shutdown(socket.SHUT_WR)


def step(runner: GatedRunner) -> None:
    """Let one step end, and wait for the next to begin."""
    runner.permits.release()
    runner.wait_for_step()


LEAVE = pytest.mark.parametrize("leave", [socket.socket.close, half_close])
STREAM = pytest.mark.parametrize("stream", [True, False])


@LEAVE
@STREAM
def test_leaving_the_queue(leave: Callable[[socket.socket], None], stream: bool) -> None:
    """[9, 71]"""
    with served(max_running=1) as (engine, runner, port), ask(port, "first") as first:
        runner.wait_for_step()
        with ask(port, "second", stream=stream) as second:
            wait_until(lambda: engine._inbox._messages)
            step(runner)
            wait_until(lambda: engine.stats().waiting == 1)
            leave(second)
            wait_until(lambda: engine._inbox._messages)
            step(runner)
            assert engine.stats().waiting == 0
        first.close()
        runner.let_go()
        assert_nothing_left(engine)


@LEAVE
@STREAM
@pytest.mark.parametrize("steps", [0, 1, 4], ids=["first chunk", "prefill", "decode"])
def test_leaving_a_running_request(leave: Callable[[socket.socket], None], stream: bool, steps: int) -> None:
    """[8, 9, 71]"""
    with served() as (engine, runner, port), ask(port, "x" * 40, stream=stream) as client:
        runner.wait_for_step()
        for _ in range(steps):
            step(runner)
        leave(client)
        wait_until(lambda: engine._inbox._messages)  # the abort, seen while the step runs
        runner.let_go()
        assert_nothing_left(engine)
        assert engine.stats().generated_tokens <= max(0, steps - 1)


def test_leaving_while_preempted() -> None:
    """[9, 49]"""
    with served(num_blocks=14) as (engine, runner, port):
        with ask(port, "x" * 14, max_tokens=40):
            runner.wait_for_step()
            with ask(port, "y" * 14, max_tokens=40):
                wait_until(lambda: engine._inbox._messages)  # both are there before the first has a token
                for _ in range(100):
                    if engine.stats().preemptions:
                        break
                    step(runner)
                assert engine.stats().preemptions == 1
        wait_until(lambda: len(engine._inbox._messages) == 2)
        runner.let_go()
        assert_nothing_left(engine)


def test_a_retry_goes_on_where_an_aborted_prefill_ended() -> None:
    """[71] The client loses patience in the middle of its prompt, and asks the same once more."""
    prompt = "a prompt that takes longer than its client waits" * 2
    with served() as (engine, runner, port):
        with ask(port, prompt):
            runner.wait_for_step()
            for _ in range(3):
                step(runner)
        wait_until(lambda: engine._inbox._messages)
        runner.let_go()
        assert_nothing_left(engine)
        body = {"prompt": prompt, "max_tokens": 2}
        usage = httpx.post(f"http://127.0.0.1:{port}{COMPLETIONS}", json=body, timeout=20).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] >= 48
        assert_nothing_left(engine)


def test_pings_do_not_wait_for_progress() -> None:
    """[61, 72] In the queue, in prefill and in decode, each time while no step ends."""
    with served(max_running=1) as (engine, runner, port), ask(port, "x" * 20) as first:
        runner.wait_for_step()
        with ask(port, "queued") as second:
            for client in (first, second, first):
                read_pings(client, 3)
                step(runner)
        first.close()
        runner.let_go()
        assert_nothing_left(engine)


def read_pings(client: socket.socket, count: int) -> None:
    client.settimeout(20)
    text = b""
    while text.count(b": ping\n\n") < count:
        part = client.recv(4096)
        assert part
        text += part


def test_a_client_that_leaves_while_its_body_comes_holds_nothing() -> None:
    with served() as (engine, runner, port):
        for sent in (b"", b'{"prompt": "x'):
            with socket.create_connection(("127.0.0.1", port)) as client:
                head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                client.sendall(f"{head}content-length: 99\r\n\r\n".encode() + sent)
        assert httpx.get(f"http://127.0.0.1:{port}/health", timeout=20).status_code == 200
        assert runner.num_calls == 0
        assert_nothing_left(engine)
