"""What docs/service.md says of exit codes is what the program does."""

import re
from pathlib import Path

from isotherm.daemon.cli.output import NO_RESTART, ExitCode

PAGE = Path(__file__).parents[2] / "docs/service.md"


def test_exit_codes_and_restarts_are_those_of_the_program() -> None:
    page = PAGE.read_text(encoding="utf-8")
    found = re.search(r"^\| exit code \| cause \| started again \|\n\|---\|---\|---\|\n(.*?)\n\n", page, re.S | re.M)
    assert found is not None
    rows = [f"| {code.value} | {code.cause} | {'no' if code in NO_RESTART else 'yes'} |" for code in ExitCode]
    assert found[1] == "\n".join(rows)
