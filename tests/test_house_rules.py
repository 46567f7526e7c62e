"""The rules of the house that no linter knows, checked on the syntax tree of each file."""

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("api", "cpu_kernels", "daemon", "experts", "gpu_kernels", "placement")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
COMPILERS = {"njit", "jit", "vectorize", "guvectorize", "stencil", "cfunc"}
# Marks of unfinished work, and folders of one machine.
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX)\b|(?<![\w.~}/])/(home|root|tmp|mnt|opt|work)/")


@cache
def sources() -> tuple[Path, ...]:
    """All Python files of the packages."""
    return (ROOT / "__init__.py", *(path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py"))))


@cache
def own_tests() -> tuple[Path, ...]:
    return tuple(sorted((ROOT / "tests").rglob("*.py")))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def offenders(paths: tuple[Path, ...], find: Callable[[Path], object]) -> dict[str, object]:
    """What `find` found in each file where it found something."""
    found = {str(path.relative_to(ROOT)): find(path) for path in paths}
    return {name: what for name, what in found.items() if what}


def test_files_are_not_long() -> None:
    def excess(path: Path) -> int:
        return max(len(path.read_text(encoding="utf-8").splitlines()) - MAX_FILE_LINES, 0)

    assert offenders((*sources(), *own_tests()), excess) == {}


def test_functions_are_not_long() -> None:
    def long(path: Path) -> list[str]:
        functions = (node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
        return [f.name for f in functions if (f.end_lineno or 0) - f.lineno >= MAX_FUNCTION_LINES]

    assert offenders(sources(), long) == {}


def test_nothing_prints() -> None:
    def prints(path: Path) -> list[int]:
        return [node.lineno for node in ast.walk(tree(path)) if isinstance(node, ast.Name) and node.id == "print"]

    assert offenders(sources(), prints) == {}


def test_kernels_are_compiled_in_one_place_of_a_package() -> None:
    places = {ROOT / package / "jit.py" for package in ("cpu_kernels", "gpu_kernels/triton_kernels")}
    others = tuple(path for path in sources() if path not in places)
    assert offenders(others, lambda path: COMPILERS.intersection(_mentions(tree(path)))) == {}


def test_own_modules_are_imported_relatively() -> None:
    assert offenders(sources(), lambda path: [name for name in _imported(tree(path)) if name == "isotherm"]) == {}


def test_every_file_says_what_it_is() -> None:
    def silent(path: Path) -> bool:
        return not ast.get_docstring(tree(path))

    assert offenders(sources(), silent) == {}


def test_nothing_is_unfinished_or_bound_to_one_machine() -> None:
    texts = (*sources(), *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "Makefile")

    def marks(path: Path) -> list[str]:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if UNFINISHED.search(line)]

    assert offenders(texts, marks) == {}


def test_every_package_is_installed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = {path.parent for path in sources()}
    expected = {".".join(("isotherm", *folder.relative_to(ROOT).parts)) for folder in folders}
    assert set(settings["tool"]["setuptools"]["packages"]) == expected


def test_names_of_test_files_are_unique() -> None:
    names = [path.name for path in own_tests() if path.name.startswith("test_")]
    assert sorted(names) == sorted(set(names))


def test_every_requirement_is_pinned() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = settings["dependencies"] + settings["optional-dependencies"]["test"]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.split("==")[0] for line in lines if not line.startswith("#")}
    assert {re.split(r"[<>=;\[ ]", requirement)[0] for requirement in requirements} - pinned == set()


def _mentions(module: ast.Module) -> Iterator[str]:
    """Names that are used or imported in a module."""
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)


def _imported(module: ast.Module) -> Iterator[str]:
    """The top packages of absolute imports."""
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").split(".")[0]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
