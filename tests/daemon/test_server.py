"""DaemonServer on a real engine over a fake model: how it ends."""

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from isotherm.daemon.budget import StepBudget
from isotherm.daemon.cli.address import BindError, bind
from isotherm.daemon.cli.output import ExitCode
from isotherm.daemon.cli.server import DaemonServer
from isotherm.daemon.config import Config
from isotherm.daemon.engine import Engine
from isotherm.daemon.events import EventLog
from isotherm.daemon.fleet.fleet import Fleet
from isotherm.daemon.kv_cache import BlockPool
from isotherm.daemon.messages import Failed, Finished
from isotherm.daemon.queue_books import QueueLimits
from isotherm.daemon.scheduler import Scheduler
from isotherm.daemon.wedge import ailment_of
from support.api_service import NoLoader
from support.fake_runner import FakeRunner
from support.serving import make_submit

PATIENCE_S = 20.0


def make_engine(runner: FakeRunner) -> Engine:
    scheduler = Scheduler(
        BlockPool(runner.num_blocks, runner.block_size),
        max_running=8,
        max_step_tokens=runner.max_step_tokens,
        max_context=runner.max_context,
        budget=StepBudget(1.0, runner.max_step_tokens),
    )
    return Engine(runner, scheduler, QueueLimits(max_queued=8, max_queued_tokens=1000), max_failures=2)


class Running:
    """An engine at work, as a loaded model."""

    nbytes = 0

    def __init__(self, engine: Engine) -> None:
        self.assembly = SimpleNamespace(engine=engine, sample=lambda: None)
        engine.start()

    def ailment(self) -> str | None:
        return ailment_of(self.assembly.engine, PATIENCE_S)

    def abandon(self, reason: str) -> None:
        self.assembly.engine.abandon(reason)

    def restart(self) -> None:
        raise RuntimeError("there is no other")

    def close(self) -> None:
        self.assembly.engine.stop()


def test_a_longer_drain_gives_connections_longer_as_well() -> None:
    """Else uvicorn cuts them while their requests still have time."""
    server = DaemonServer(FastAPI(), Fleet(("tiny",), NoLoader(), EventLog()), Config(drain_s=1.0), lambda: None)
    server.drain_for(300.0)
    assert server.config.timeout_graceful_shutdown is not None
    assert server.config.timeout_graceful_shutdown > 300


class Served:
    """A server in a thread, so that no signal handler is set; `reason` is there after `join`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.ready = threading.Event()
        fleet: Fleet[Any] = Fleet(("tiny",), NoLoader(), EventLog())
        fleet.adopt("tiny", Running(engine))
        self.stopping = threading.Event()
        config = Config(drain_s=PATIENCE_S)
        self.server = DaemonServer(FastAPI(), fleet, config, self.ready.set, on_stopping=self.stopping.set)
        self.listener = bind("127.0.0.1", 0)
        self.reason: ExitCode | None = None
        self.thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        self.reason = self.server.serve_on(self.listener)

    def join(self) -> ExitCode | None:
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
        return self.reason


@contextmanager
def serving(runner: FakeRunner) -> Iterator[Served]:
    served = Served(make_engine(runner))
    served.thread.start()
    try:
        assert served.ready.wait(PATIENCE_S)
        yield served
    finally:
        served.server.should_exit = True
        served.engine.stop()
        served.join()


def test_first_signal_lets_open_requests_finish() -> None:
    """[67]"""
    with serving(FakeRunner(latency_s=0.005)) as served:
        mailbox = served.engine.client.submit(make_submit("a", [1, 2], max_tokens=40))
        assert not served.stopping.is_set()
        served.server.handle_exit(signal.SIGTERM, None)
        assert served.stopping.is_set()
        assert served.join() is None
        (*_, end) = mailbox
    assert isinstance(end, Finished)
    assert end.usage.completion_tokens == 40


def test_second_signal_cuts_open_requests_off() -> None:
    """[67]"""
    with serving(FakeRunner(latency_s=0.05)) as served:
        mailbox = served.engine.client.submit(make_submit("a", [1, 2], max_tokens=250))
        served.server.handle_exit(signal.SIGTERM, None)
        served.server.handle_exit(signal.SIGTERM, None)
        assert served.join() == ExitCode.FORCED
        (*_, end) = mailbox
    assert isinstance(end, Failed)


def test_failed_engine_ends_the_server() -> None:
    """[67]"""
    with serving(FakeRunner(fail_calls=range(1, 100))) as served:
        for name in ("a", "b"):
            (*_, end) = served.engine.client.submit(make_submit(name, [1, 2]))
            assert isinstance(end, Failed)
        assert served.join() == ExitCode.ENGINE


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="a setting of Linux")
def test_connections_of_clients_that_read_nothing_end() -> None:
    """What was sent, or waits to be, may stay unread only so long: the system then closes the connection."""
    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 120_000
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


def test_address_in_use_is_a_bind_error() -> None:
    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        with pytest.raises(BindError, match=r"cannot listen on 127\.0\.0\.1 port .*in use"):
            bind("127.0.0.1", listener.getsockname()[1])
