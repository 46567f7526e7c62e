"""How commands find a daemon, and what they call themselves."""

import os
import sys
from pathlib import Path

import pytest
import typer
from isotherm.daemon import cli
from isotherm.daemon.cli.background import hints
from isotherm.daemon.cli.output import ExitCode
from isotherm.daemon.cli.program import program
from isotherm.daemon.cli.remote import normal_url
from isotherm.daemon.state import write_state
from support.api_service import make_service, serving
from support.cli import daemon_state, run

pytestmark = pytest.mark.usefixtures("own_folders")


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:8440",
        "http://127.0.0.1:8440/",
        "http://127.0.0.1:8440/v1",
        "127.0.0.1:8440",
        "127.0.0.1:8440/v1/",
    ],
)
def test_an_address_may_be_written_in_several_ways(text: str) -> None:
    assert normal_url(text) == "http://127.0.0.1:8440"


def test_a_name_and_a_path_stay() -> None:
    assert normal_url("localhost:8440") == "http://localhost:8440"
    assert normal_url("https://host/isotherm/v1") == "https://host/isotherm"


@pytest.mark.parametrize("text", ["", "ftp://host", "http://", "a b", "http://a:port", "host:99999999"])
def test_nonsense_is_no_address(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended:
        normal_url(text)
    assert ended.value.exit_code == ExitCode.USAGE
    assert "--url is no address" in capsys.readouterr().err


def test_url_and_port_together_are_refused() -> None:
    result = run("status", "--url", "localhost:1", "--port", 1)
    assert result.exit_code == ExitCode.USAGE
    assert "leave one out" in result.stderr


def test_the_address_that_is_printed_can_be_used() -> None:
    with serving(make_service("Hi")) as port:
        assert run("chat", "hello", "--url", f"http://127.0.0.1:{port}/v1").stdout == "Hi\n"


def test_hints_name_the_port_when_several_daemons_run() -> None:
    write_state(daemon_state(port=1))
    assert hints(1, "http://a:1")[0] == "  talk  isotherm chat"
    write_state(daemon_state(port=2))
    assert hints(2, "http://a:2")[0] == "  talk  isotherm chat --port 2"
    assert hints(2, "http://a:2")[-1] == "  see   http://a:2/ui"


def test_program_is_named_by_its_path_unless_the_path_variable_finds_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "isotherm"
    script.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [os.fspath(script)])
    assert program() == os.fspath(script)
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    assert program() == "isotherm"


def test_program_that_is_run_as_a_module_is_named_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(Path(cli.__file__).with_name("__main__.py"))])
    assert program() == f"{sys.executable} -m isotherm.daemon.cli"
