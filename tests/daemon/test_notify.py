"""What a service manager is told, and when it is not."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from isotherm.daemon.notify import Notifier, notifier_from, watchdog_s
from isotherm.daemon.watchdog import Watchdog
from support.notify_socket import NotifySocket


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[NotifySocket]:
    with NotifySocket(tmp_path) as each:
        yield each


def test_without_a_manager_nothing_is_told() -> None:
    notifier = notifier_from({})
    notifier.ready("serving")
    assert not notifier.supervised


def test_messages_have_the_lines_of_the_protocol(manager: NotifySocket) -> None:
    notifier = Notifier(manager.address)
    notifier.loading("reading packed weights", 1, 4)
    notifier.ready("serving m")
    notifier.watchdog("serving m; 1 running")
    notifier.stopping("open requests may finish", 30.0)
    assert manager.rest() == [
        ["STATUS=reading packed weights: 25 %", "EXTEND_TIMEOUT_USEC=900000000"],
        ["READY=1", "STATUS=serving m"],
        ["WATCHDOG=1", "STATUS=serving m; 1 running"],
        ["STOPPING=1", "STATUS=open requests may finish", "EXTEND_TIMEOUT_USEC=30000000"],
    ]


def test_reload_is_told_with_the_time_before_and_what_came_of_it_after(manager: NotifySocket) -> None:
    def work() -> str:
        order.extend(manager.rest())
        return "read config.toml"

    order: list[list[str]] = []
    Notifier(manager.address).reload(work)
    (reloading,) = order
    assert reloading[0] == "RELOADING=1"
    name, _, usec = reloading[1].partition("=")
    assert (name, int(usec) > 0) == ("MONOTONIC_USEC", True)
    assert manager.rest() == [["READY=1", "STATUS=read config.toml"]]


def test_progress_of_a_stage_is_told_now_and_then_but_its_begin_and_end_always(manager: NotifySocket) -> None:
    notifier = Notifier(manager.address)
    for done in range(101):
        notifier.loading("packing", done, 100)
    told = [message[0] for message in manager.rest()]
    assert told[0] == "STATUS=packing: 0 %"
    assert told[-1] == "STATUS=packing: 100 %"
    assert len(told) < 50


def test_a_status_of_several_lines_is_one_line(manager: NotifySocket) -> None:
    Notifier(manager.address).status("two\nlines READY=1\nREADY=1")
    assert manager.rest() == [["STATUS=two lines READY=1 READY=1"]]


def test_the_end_is_told_once(manager: NotifySocket) -> None:
    notifier = Notifier(manager.address)
    notifier.stopping("a signal came", 1.0)
    notifier.stopping("it is over", 1.0)
    assert len(manager.rest()) == 1


def test_an_abstract_socket_is_reached() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        name = f"isotherm-test-{os.getpid()}"
        receiver.bind(f"\0{name}")
        Notifier(f"@{name}").ready("serving")
        assert receiver.recv(100) == b"READY=1\nSTATUS=serving"


def test_a_manager_that_is_gone_is_logged_and_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Notifier(str(tmp_path / "gone")).ready("serving")
    assert "cannot be told READY=1" in caplog.text


def test_variables_of_the_manager_are_not_left_for_children() -> None:
    environment = {"NOTIFY_SOCKET": "/run/n", "WATCHDOG_USEC": "1500000", "WATCHDOG_PID": str(os.getpid()), "A": "b"}
    assert notifier_from(environment).supervised
    assert watchdog_s(environment) == 1.5
    assert environment == {"A": "b"}


@pytest.mark.parametrize(
    "environment",
    [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}],
    ids=["none", "zero", "no number", "another process's"],
)
def test_no_watchdog_waits(environment: dict[str, str]) -> None:
    assert watchdog_s(environment) is None


def test_watchdog_is_fed_until_a_watch_has_a_fault_and_again_after_it(
    manager: NotifySocket, caplog: pytest.LogCaptureFixture
) -> None:
    faults = iter([None, "a step hangs", "a step hangs", None])
    watchdog = Watchdog(Notifier(manager.address), [lambda now: None, lambda now: next(faults)], lambda: "well", 60.0)
    for now in range(4):
        watchdog.look(now)
    well = ["WATCHDOG=1", "STATUS=well"]
    assert manager.rest() == [well, ["STATUS=not well: a step hangs"], well]
    assert caplog.text.count("the watchdog is not fed: a step hangs") == 1
