"""What clients hear while the first model loads, and that none is lost when it has."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import anthropic
import httpx
import ollama
import openai
import pytest
from isotherm.api.loading import answer_while_loading
from isotherm.daemon.cli.address import BindError, bind
from isotherm.daemon.cli.loading import answering
from isotherm.experts.progress import Progress
from support.api_service import make_service, serving, wait_until

CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


@contextmanager
def loading() -> Iterator[tuple[socket.socket, str, Progress]]:
    with bind("127.0.0.1", 0) as listener, answering(listener, "big", answer_while_loading) as tell:
        yield listener, f"http://127.0.0.1:{listener.getsockname()[1]}", tell


def test_health_says_how_far_it_is() -> None:
    with loading() as (_, url, tell):
        assert httpx.get(f"{url}/health").json()["reason"] == "big is still loading"
        tell("packing weights", 3, 4)
        answer = httpx.get(f"{url}/health?x=1")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        reason = "big is still loading (packing weights, 75%)"
        assert answer.json() == {"status": "unavailable", "reason": reason, "loading": "big"}
        assert httpx.head(f"{url}/health").status_code == 503
        assert "version" in httpx.get(f"{url}/version").json()


def test_each_dialect_is_refused_in_its_own_words() -> None:
    with loading() as (_, url, _tell):
        with (
            openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client,
            pytest.raises(openai.InternalServerError) as refused,
        ):
            client.chat.completions.create(**CHAT)
        assert (refused.value.status_code, refused.value.code) == (503, "engine_unavailable")
        with (
            anthropic.Anthropic(base_url=url, api_key="x", max_retries=0) as other,
            pytest.raises(anthropic.APIStatusError) as overloaded,
        ):
            other.messages.create(**CHAT, max_tokens=5)
        assert overloaded.value.status_code == 503
        assert overloaded.value.body["type"] == "error"
        shim = ollama.Client(host=url)
        with pytest.raises(ollama.ResponseError, match="big is still loading") as told:
            shim.chat(**CHAT)
        assert told.value.status_code == 503
        shim._client.close()


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW"])
def test_any_method_is_answered(method: str) -> None:
    with loading() as (_, url, _tell):
        assert httpx.request(method, f"{url}/v1/models").status_code == 503


def test_a_large_body_does_not_cost_the_answer() -> None:
    with loading() as (_, url, _tell):
        for body in (b"x" * (6 << 20), iter([b"x" * (1 << 20)] * 3)):
            assert httpx.post(f"{url}/v1/chat/completions", content=body, timeout=60).status_code == 503


@pytest.mark.parametrize(
    "sent", [b"", b"\r\n\r\n", b"\x16\x03\x01\x02\x00", b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"x" * 70000]
)
def test_what_is_no_request_disturbs_nobody(sent: bytes) -> None:
    with loading() as (listener, url, _tell), socket.create_connection(listener.getsockname()) as client:
        client.sendall(sent)
        assert httpx.get(f"{url}/health").status_code == 503


def test_clients_that_send_nothing_do_not_delay_the_daemon() -> None:
    clients = []
    try:
        with bind("127.0.0.1", 0) as listener:
            with answering(listener, "big", answer_while_loading):
                clients += [socket.create_connection(listener.getsockname()) for _ in range(50)]
            with serving(make_service("Hello"), listener=listener) as port:
                assert httpx.get(f"http://127.0.0.1:{port}/health", timeout=20).status_code == 200
    finally:
        for client in clients:
            client.close()


def test_no_request_is_lost_when_the_daemon_takes_over() -> None:
    statuses: list[int | str] = []
    done = threading.Event()

    def ask(url: str) -> None:
        while not done.is_set():
            try:
                statuses.append(httpx.get(f"{url}/health", timeout=20).status_code)
            except httpx.HTTPError as error:
                statuses.append(repr(error))

    with bind("127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        askers = [threading.Thread(target=ask, args=(url,)) for _ in range(8)]
        with answering(listener, "big", answer_while_loading):
            for asker in askers:
                asker.start()
            wait_until(lambda: 503 in statuses)
        with serving(make_service("Hello"), listener=listener):
            try:
                wait_until(lambda: 200 in statuses)
            finally:
                done.set()
                for asker in askers:
                    asker.join()
    assert set(statuses) == {200, 503}


def test_a_listener_of_a_service_manager_is_left_to_the_daemon() -> None:
    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        with answering(listener, "big", answer_while_loading), socket.create_connection(listener.getsockname()):
            connected, _ = listener.accept()
            connected.close()


def test_a_port_that_another_program_listens_on_is_told() -> None:
    with bind("127.0.0.1", 0) as listener, bind("127.0.0.1", listener.getsockname()[1]) as other:
        other.listen()
        with pytest.raises(BindError, match="Address already in use"), answering(listener, "m", answer_while_loading):
            pass
