"""Clients that leave, against a real server. Numbers in brackets: a known bug of other servers that is tested for."""

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

import httpx
import orjson
import pytest
from isotherm.api.service import Limits
from isotherm.daemon.errors import OverloadedError
from starlette.types import Message
from support.api_service import CHAT, app_of, make_service, serving, wait_until
from support.scripted_engine import HANG, ByteTokenizer, ScriptedEngine, Step, says

MESSAGES = [{"role": "user", "content": "x"}]


def send_chat(port: int, **fields: Any) -> socket.socket:
    """A chat request on a socket of its own, whose small receive buffer is not read."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    body = orjson.dumps({"messages": MESSAGES, **fields})
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    client.sendall(head.encode() + body)
    return client


def read_until(client: socket.socket, text: bytes) -> bytes:
    data = b""
    while text not in data:
        part = client.recv(4096)
        assert part, data
        data += part
    return data


def close(client: socket.socket) -> None:
    client.close()


def reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def half_close(client: socket.socket) -> None:
    client.shutdown(socket.SHUT_WR)


def hanging(*steps: Step) -> ScriptedEngine:
    return ScriptedEngine(lambda submit: [*steps, HANG])


def assert_all_aborted(engine: ScriptedEngine) -> None:
    wait_until(lambda: not engine.open)
    assert sorted(engine.aborted) == sorted((submit.request_id, "abort") for submit in engine.submitted)


@pytest.mark.parametrize("leave", [close, reset, half_close])
@pytest.mark.parametrize("stream", [True, False])
def test_leaving_in_prefill_aborts(leave: Callable[[socket.socket], None], stream: bool) -> None:
    """[8, 71] Nothing has been sent yet, so no write can fail."""
    engine = hanging()
    with serving(make_service(engine)) as port, send_chat(port, stream=stream) as client:
        wait_until(lambda: engine.open)
        leave(client)
        assert_all_aborted(engine)


@pytest.mark.parametrize("leave", [close, reset, half_close])
def test_leaving_in_decode_aborts(leave: Callable[[socket.socket], None]) -> None:
    """[8]"""
    engine = hanging(*says("Hi"))
    with serving(make_service(engine)) as port, send_chat(port, stream=True) as client:
        read_until(client, b'"content":"Hi"')
        leave(client)
        assert_all_aborted(engine)


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_aborts_all_choices(stream: bool) -> None:
    """[8, 30]"""
    engine = hanging()
    with serving(make_service(engine)) as port, send_chat(port, stream=stream, n=3) as client:
        wait_until(lambda: len(engine.open) == 3)
        client.close()
        assert_all_aborted(engine)


def test_a_client_that_stops_reading_is_given_up() -> None:
    """[71] Its connection is full; the wait for it is bounded."""
    engine = ScriptedEngine(lambda submit: [*says("x" * 3000), HANG], max_context=10_000)
    service = make_service(engine, limits=Limits(ping_interval=0.05, write_timeout=0.2))
    with serving(service) as port, send_chat(port, stream=True, logprobs=True, top_logprobs=5):
        wait_until(lambda: engine.aborted)
        assert_all_aborted(engine)


def test_leaving_while_the_prompt_is_encoded_aborts() -> None:
    """[8]"""
    tokenizer = BlockedTokenizer()
    engine = hanging()
    with serving(make_service(engine, tokenizer=tokenizer)) as port:
        client = send_chat(port)
        assert tokenizer.entered.wait(20)
        client.close()
        tokenizer.go_on.set()
        wait_until(lambda: engine.aborted)
        assert_all_aborted(engine)


def test_leaving_in_the_body_submits_nothing(caplog: pytest.LogCaptureFixture) -> None:
    engine = hanging()
    with serving(make_service(engine)) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{{"
            client.sendall(head.encode())
        assert httpx.get(f"http://127.0.0.1:{port}/health", timeout=20).status_code == 200
    assert engine.submitted == []
    assert "failed" not in caplog.text


@pytest.mark.parametrize("stream", [True, False])
def test_a_connection_that_the_event_loop_has_closed_already_is_no_failure(stream: bool) -> None:
    """uvloop raises RuntimeError between its close and the server's notice of it."""
    service = make_service("Hi")
    body = orjson.dumps({"messages": MESSAGES, "stream": stream})
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    closed = asyncio.Event()

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await closed.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        closed.set()
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": CHAT, "raw_path": CHAT.encode(), "query_string": b""}
    asyncio.run(app_of(service)({**scope, "headers": headers}, receive, send))
    assert not service.client.open


class BlockedTokenizer(ByteTokenizer):
    """Encodes only when told to go on."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.go_on = threading.Event()

    def encode(self, text: str, *, add_special: bool, parse_special: bool = True) -> list[int]:
        self.entered.set()
        assert self.go_on.wait(20)
        return super().encode(text, add_special=add_special)


def test_encoding_does_not_stall_other_requests() -> None:
    tokenizer = BlockedTokenizer()
    service = make_service(tokenizer=tokenizer)
    with serving(service) as port, send_chat(port) as client:
        assert tokenizer.entered.wait(20)
        assert httpx.get(f"http://127.0.0.1:{port}/health", timeout=20).status_code == 200
        tokenizer.go_on.set()
        assert b'"content":"Hi"' in read_until(client, b"usage")


def test_headers_come_before_the_first_token() -> None:
    """[61]"""
    engine = hanging()
    with serving(make_service(engine)) as port, send_chat(port, stream=True) as client:
        assert read_until(client, b"\r\n\r\n").startswith(b"HTTP/1.1 200")
        assert engine.aborted == []


def test_a_connection_serves_the_next_request_after_a_stream() -> None:
    with serving(make_service()) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
        for _ in range(2):
            response = client.post(CHAT, json={"messages": MESSAGES, "stream": True})
            assert response.text.endswith("data: [DONE]\n\n")


def test_a_flood_ends_in_one_answer_each() -> None:
    """[53, 59]"""
    engine = ScriptedEngine(lambda submit: says("Hi", 0.001), refuse=OverloadedError("full", 1.0), capacity=20)

    async def flood() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app_of(make_service(engine)))
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client:
            body = {"messages": MESSAGES, "stream": True}
            return await asyncio.gather(*[client.post(CHAT, json=body) for _ in range(200)])

    responses = asyncio.run(flood())
    accepted = [response for response in responses if response.status_code == 200]
    assert {response.status_code for response in responses} <= {200, 429}
    assert len(accepted) == len(engine.submitted) >= 20
    assert all(response.text.count("data: [DONE]") == 1 for response in accepted)
    assert (engine.open, engine.aborted) == ({}, [])
