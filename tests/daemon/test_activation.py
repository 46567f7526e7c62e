"""The socket that a service manager passes, as file descriptor 3 of a process of its own."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

# As systemd does it: the socket becomes descriptor 3, and the variables name the process that is to take it.
TAKE = """
import json, os, socket, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_PID": str(os.getpid() + int(sys.argv[3])), "LISTEN_FDS": sys.argv[2], "LISTEN_FDNAMES": "http"}
from isotherm.daemon.cli.activation import passed_listener
try:
    listener = passed_listener(os.environ)
    told = None if listener is None else listener.getsockname()
except OSError as error:
    told = str(error)
inheritable = not isinstance(told, str) and os.get_inheritable(3)
print(json.dumps([told, sorted(name for name in os.environ if name.startswith("LISTEN_")), inheritable]))
"""


def take(passed: socket.socket, *, count: int = 1, other_pid: int = 0) -> tuple[object, list[str], bool]:
    line = [sys.executable, "-c", TAKE, str(passed.fileno()), str(count), str(other_pid)]
    done = subprocess.run(line, pass_fds=[passed.fileno()], capture_output=True, text=True, check=True)
    told, variables, inheritable = json.loads(done.stdout)
    return told, variables, inheritable


def listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def test_a_listening_socket_is_taken_and_left_to_no_child() -> None:
    with listening() as listener:
        assert take(listener) == (list(listener.getsockname()), [], False)


def test_a_socket_for_another_process_is_not_ours() -> None:
    with listening() as listener:
        assert take(listener, other_pid=1) == (None, [], True)


def test_several_sockets_are_refused() -> None:
    with listening() as listener:
        assert "write one ListenStream=" in str(take(listener, count=2)[0])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM), "does not listen"),
        (lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM), "no TCP socket"),
        (lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), "no TCP socket"),
    ],
    ids=["not listening", "datagrams", "local"],
)
def test_what_cannot_be_served_on_is_refused(make: Callable[[], socket.socket], words: str) -> None:
    with make() as each:
        assert words in str(take(each)[0])


def test_without_variables_there_is_none() -> None:
    from isotherm.daemon.cli.activation import passed_listener

    assert passed_listener({}) is None
    assert passed_listener({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "0"}) is None
