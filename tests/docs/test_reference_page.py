"""docs/reference.md is what the code says."""

import pytest
from support.reference import PAGE, all_commands, reference


def test_the_committed_page_is_what_the_code_gives() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "run: make docs"


@pytest.mark.parametrize("heading", ["Commands", "Configuration keys", "Exit codes", "Routes", "Metrics"])
def test_it_has_every_part(heading: str) -> None:
    part = reference().split(f"## {heading}\n")[1].split("\n## ")[0]
    assert part.count("\n| `") > 5 or heading == "Exit codes"


def test_every_option_has_help() -> None:
    missing = [
        (name, param.name)
        for name, command in all_commands()
        for param in command.params
        if not (param.help or "").strip() and param.name != "help"
    ]
    assert missing == []
