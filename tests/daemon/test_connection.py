"""Connections against a real server: heads that never end are cut, others are served."""

import socket
from collections.abc import Iterator

import httpx
import pytest
from isotherm.daemon.cli.connection import Connection
from support.api_service import CHAT, make_service, serving
from support.scripted_engine import says


class Impatient(Connection):
    head_timeout_s = 1.0


class Frugal(Connection):
    max_head = 1000


@pytest.fixture(scope="module")
def impatient() -> Iterator[int]:
    with serving(make_service([1.5, *says("Hi")]), http=Impatient) as port:
        yield port


@pytest.fixture(scope="module")
def frugal() -> Iterator[int]:
    with serving(make_service("Hi"), http=Frugal) as port:
        yield port


def answer_to(port: int, data: bytes) -> bytes:
    """All that comes until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(data)
        received = b""
        while part := client.recv(4096):
            received += part
    return received


@pytest.mark.parametrize(
    "data",
    [b"", b"\r\n", b"GET /health HTTP/1.1\r\nhost: x\r\na: b", b"GET /health HTTP/1.1\r\nhost: x\r\n\r\nGET /he"],
    ids=["nothing", "blank", "half a head", "half a second head"],
)
def test_a_head_that_does_not_end_in_time_ends_the_connection(impatient: int, data: bytes) -> None:
    assert answer_to(impatient, data).count(b"200 OK") == data.count(b"\r\n\r\n")


def test_a_head_that_is_too_large_is_refused(frugal: int) -> None:
    answer = answer_to(frugal, b"GET /health HTTP/1.1\r\nhost: x\r\na: " + b"b" * 2000)
    assert b"400 Bad Request" in answer and b"exceeds 1000 bytes" in answer


def test_a_large_body_is_no_large_head(frugal: int) -> None:
    assert ask(frugal, user="y" * 100_000).status_code == 200


def test_an_answer_may_take_longer_than_a_head(impatient: int) -> None:
    assert ask(impatient).json()["choices"][0]["message"]["content"] == "Hi"


def ask(port: int, **fields: str) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": "x"}], **fields}
    return httpx.post(f"http://127.0.0.1:{port}{CHAT}", json=body, timeout=20, trust_env=False)
