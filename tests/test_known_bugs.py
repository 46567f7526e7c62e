"""docs/known_bugs.md against the tests: each bug is tested for, or does not apply for a reason."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "known_bugs.md"
NUMBERS = range(1, 76)
NO_TEST = "does not apply: "
_ROW = re.compile(r"^\| (\d+) \|(.*)\|$", re.MULTILINE)
_MARK = re.compile(r"\[(\d+(?:, \d+)*)\]")
_FILE = re.compile(r"`([^`]+)`")


def rows() -> dict[int, list[str]]:
    """By number the cells after it; fails on a number that stands twice."""
    found: dict[int, list[str]] = {}
    for number, cells in _ROW.findall(PAGE.read_text(encoding="utf-8")):
        assert int(number) not in found, f"{number} stands twice"
        found[int(number)] = [cell.strip() for cell in cells.split(" | ")]
    return found


def marks(path: Path) -> set[int]:
    """The numbers at the beginning of the docstrings of a file's tests."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            mark = _MARK.match(ast.get_docstring(node) or "")
            assert mark is None or node.name.startswith("test_") or isinstance(node, ast.ClassDef), (path, node.name)
            found |= set(map(int, mark[1].split(", "))) if mark else set()
    return found


def test_each_number_has_one_complete_row() -> None:
    found = rows()
    assert sorted(found) == list(NUMBERS)
    assert {number for number, cells in found.items() if len(cells) != 3 or not all(cells)} == set()


@pytest.mark.parametrize("number", NUMBERS)
def test_a_row_has_its_tests_or_a_reason(number: int) -> None:
    tests = rows()[number][-1]
    if tests.startswith(NO_TEST):
        assert len(tests) > len(NO_TEST) + 20
        return
    files = _FILE.findall(tests)
    assert files
    assert tests == ", ".join(f"`{file}`" for file in files)
    assert [file for file in files if number not in marks(TESTS / file)] == []


def test_no_test_has_a_number_without_a_row_that_wants_tests() -> None:
    wanted = {number for number, cells in rows().items() if not cells[-1].startswith(NO_TEST)}
    strange = {str(path): extra for path in TESTS.rglob("test_*.py") if (extra := marks(path) - wanted)}
    assert strange == {}
