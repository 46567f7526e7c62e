"""The file of API keys, and the command that makes one."""

import os
from pathlib import Path

import pytest
from isotherm.daemon.api_keys import first_key, key_line, new_key, read_key_file
from isotherm.daemon.cli.app import app
from isotherm.daemon.config import ConfigError, key_digest
from typer.testing import CliRunner


def key_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "keys"
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


def test_a_line_may_be_a_key_itself(tmp_path: Path) -> None:
    file = read_key_file(key_file(tmp_path, "# for the editor\nalpha\n\n  beta \n"))
    assert file.plain == ("alpha", "beta")
    assert set(file.names) == {key_digest("alpha"), key_digest("beta")}


def test_a_line_may_be_the_digest_of_a_key_with_a_name(tmp_path: Path) -> None:
    lines = f"{key_line('alpha', 'editor')}\n{key_line('beta', None).upper().replace('SHA', 'sha')}\n"
    file = read_key_file(key_file(tmp_path, lines))
    assert file.names[key_digest("alpha")] == "editor"
    assert file.names[key_digest("beta")] == f"key-{key_digest('beta').hex()[:8]}"
    assert file.plain == ()


def test_a_key_is_in_no_name(tmp_path: Path) -> None:
    assert "alpha" not in "".join(read_key_file(key_file(tmp_path, "alpha\n")).names.values())


@pytest.mark.parametrize("line", ["sha256:", "sha256:12", "sha256:" + "g" * 64, f"{key_line('a', None)} a b"])
def test_a_digest_that_is_none_is_refused_by_its_line(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match="line 2: after sha256: come 64"):
        read_key_file(key_file(tmp_path, f"alpha\n{line}\n"))


@pytest.mark.parametrize("content", [None, "", "# only a comment\n"])
def test_a_file_without_keys_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "keys" if content is None else key_file(tmp_path, content)
    with pytest.raises(ConfigError, match="--api-key-file"):
        read_key_file(path)


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        ("alpha", 0o644, "can read"),
        ("alpha", 0o640, "can read"),
        (key_line("alpha", None), 0o664, "let anybody in"),
        ("alpha", 0o600, None),
        (key_line("alpha", None), 0o644, None),
    ],
)
def test_a_file_that_others_can_use_is_told(tmp_path: Path, text: str, mode: int, words: str | None) -> None:
    exposed = read_key_file(key_file(tmp_path, text, mode)).exposed
    assert exposed is None if words is None else words in (exposed or "")


def test_a_client_sends_the_first_key_that_is_written_out(tmp_path: Path) -> None:
    assert first_key(key_file(tmp_path, f"{key_line('beta', None)}\nalpha\n")) == "alpha"
    with pytest.raises(ConfigError, match="cannot be sent"):
        first_key(key_file(tmp_path, key_line("beta", None)))


def test_no_two_keys_are_alike() -> None:
    assert len({new_key() for _ in range(100)}) == 100
    assert len(new_key()) > 40


@pytest.mark.parametrize("name", ["", "a b", "-a", "x" * 65, "a\nb"])
def test_a_name_is_one_word(name: str) -> None:
    with pytest.raises(ConfigError, match="--name"):
        key_line("alpha", name)


def test_the_command_shows_a_key_and_the_line_that_accepts_it(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["key", "--name", "editor"])
    secret, line = result.stdout.split("\n")[:2]
    assert read_key_file(key_file(tmp_path, line)).names == {key_digest(secret): "editor"}


def test_the_command_adds_to_a_file_that_only_its_owner_can_read(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    secrets = [CliRunner().invoke(app, ["key", "--file", str(path)]).stdout.strip() for _ in range(2)]
    assert set(read_key_file(path).names) == {key_digest(secret) for secret in secrets}
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_the_command_ends_a_last_line_first(tmp_path: Path) -> None:
    path = key_file(tmp_path, "alpha")
    secret = CliRunner().invoke(app, ["key", "--file", str(path)]).stdout.strip()
    assert set(read_key_file(path).names) == {key_digest("alpha"), key_digest(secret)}


def test_the_command_refuses_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["key", "--file", str(tmp_path)])
    assert result.exit_code == 2
