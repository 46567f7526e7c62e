"""Every command in the documentation exists, with every option that it is shown with."""

import re
import tomllib

import pytest
from support.documented import parse, words, wrong
from support.pages import ROOT, Command, commands, pages
from support.reference import all_commands

PAGES = pages()


def of(page: str, program: str) -> list[Command]:
    return [command for command in commands(page) if words(command.text)[0] == program]


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_isotherm_exist_with_their_options(page: str) -> None:
    assert {str(command): what for command in of(page, "isotherm") if (what := wrong(command))} == {}


@pytest.mark.parametrize(
    "text", ["isotherm serv", "isotherm serve --colour", "isotherm plan diff", "isotherm config edit", "isotherm pull"]
)
def test_a_command_that_does_not_exist_is_found(text: str) -> None:
    assert wrong(Command("x.md", 1, text, "block"))


def test_targets_of_make_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {word for page in PAGES for command in of(page, "make") for word in words(command.text)[1:2]}
    assert {"serve", "test"} <= named <= targets


def test_scripts_of_python_and_pytest_exist_with_their_options() -> None:
    lines = [words(command.text) for page in PAGES for name in ("python", "pytest") for command in of(page, name)]
    assert lines
    for line in lines:
        script = ROOT / next(word for word in line[1:] if word.endswith(".py"))
        source = script.read_text(encoding="utf-8")
        options = [word for word in line[1:] if word.startswith("--")]
        assert [option for option in options if f'"{option}"' not in source] == [], line


def test_extras_of_pip_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    lines = [command.text for page in PAGES for command in of(page, "pip")]
    assert lines
    assert [line for line in lines for extra in re.findall(r"\[(\w+)\]", line) if extra not in extras] == []


def test_the_readme_has_every_command() -> None:
    def briefly(name: str) -> str:
        return " ".join(name.split()[:2])

    named = {
        briefly(parse(words(command.text)[1:])[0])
        for command in of("README.md", "isotherm")
        if command.place == "table"
    }
    assert sorted({briefly(name) for name, _ in all_commands()} - named) == []
