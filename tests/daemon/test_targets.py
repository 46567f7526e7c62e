"""Files that commands of the command line are to read and write, and names of them that no file can have."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from isotherm.daemon.cli.output import ExitCode
from isotherm.daemon.cli.target import check_target
from support.cli import run
from typer import Exit

pytestmark = pytest.mark.usefixtures("own_folders")

LONG = "x" * 300
CARD = ("--hardware", "ddr5-desktop-rtx4090")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("plan", "diff", LONG, LONG), ExitCode.USAGE),
        (("calibrate", "--show", LONG), ExitCode.USAGE),
        (("profile", "no.gguf", "--prompts", LONG), ExitCode.USAGE),
        (("profile", "show", LONG), ExitCode.MODEL),
        (("simulate", LONG, *CARD), ExitCode.MODEL),
    ],
)
def test_a_name_that_is_too_long_is_refused_in_a_line(command: Sequence[str], code: ExitCode) -> None:
    result = run(*command)
    assert (result.exit_code, result.stderr.count("\n")) == (code, 1)
    assert LONG in result.stderr


@pytest.mark.parametrize(
    "command", [("calibrate", "--out"), ("plan", "no.gguf", *CARD, "--out"), ("simulate", "no.gguf", *CARD, "--csv")]
)
@pytest.mark.parametrize(
    ("target", "words"), [(".", "is a folder"), ("", "is a folder"), ("no/folder/x", "lies in no folder that exists")]
)
def test_what_cannot_be_written_is_refused_before_the_work(command: Sequence[str], target: str, words: str) -> None:
    result = run(*command, target)
    assert result.exit_code == ExitCode.USAGE
    assert f"{command[-1]} {target or '.'} {words}; name a file in a folder" in result.stderr


def test_a_folder_that_takes_no_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the superuser, who tests in many a container, may write everywhere, the system's answer is played."""
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(Exit):
        check_target("--png", tmp_path / "a.png")
    assert f"--png {tmp_path / 'a.png'} cannot be written; name a file" in capsys.readouterr().err
    (tmp_path / "b.png").touch()
    check_target("--png", tmp_path / "b.png")


def test_two_results_are_not_written_into_one_file(tmp_path: Path) -> None:
    result = run("simulate", "no.gguf", *CARD, "--csv", tmp_path / "a", "--json", tmp_path / "." / "a")
    assert result.exit_code == ExitCode.USAGE
    assert "name another file" in result.stderr
