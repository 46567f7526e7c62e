"""The pages of documentation: their links, pictures, and the code that they name."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
from support.pages import ROOT, anchors, blocks, commands, links, pages, spans

PAGES = pages()
_MODULE = re.compile(r"(api|daemon|experts|cpu_kernels|gpu_kernels|placement)((\.\w+)+)(\(\))?")
_FILE = re.compile(r"(api|daemon|docs|experts|cpu_kernels|gpu_kernels|placement|profiles|tests)/[\w./-]+")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    broken = []
    for number, target in links(page):
        path, _, anchor = target.partition("#")
        if re.match(r"\w+:", target):
            continue
        file = (ROOT / page).parent / path if path else ROOT / page
        if not file.exists() or (anchor and anchor not in anchors(str(file.resolve().relative_to(ROOT)))):
            broken.append((number, target))
    assert broken == []


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_exist(page: str) -> None:
    missing = [(number, text) for number, text in spans(page) if _FILE.fullmatch(text) and not _there(text)]
    assert missing == []


@pytest.mark.parametrize("page", PAGES)
def test_code_that_is_named_exists(page: str) -> None:
    missing = []
    for number, text in spans(page):
        found = _MODULE.fullmatch(text)
        if found and not _is_code(ROOT / found[1], found[2].strip(".").split(".")):
            missing.append((number, text))
    assert missing == []


def test_tests_that_are_named_exist() -> None:
    known = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    named = {text for page in PAGES for _, text in spans(page) if re.fullmatch(r"test_\w+", text)}
    assert sorted(named - known) == []


def test_every_page_is_reached_from_the_readme() -> None:
    seen, ahead = set(), ["README.md"]
    while ahead:
        page = ahead.pop()
        seen.add(page)
        near = [(Path(page).parent / target.partition("#")[0]).as_posix() for _, target in links(page)]
        ahead += [each for each in near if each in PAGES and each not in seen]
    assert sorted(set(PAGES) - seen) == []


def test_blocks_say_what_they_are_or_are_commands_or_text() -> None:
    """Whatever is Python or TOML can be read as that."""
    for page in PAGES:
        for block in blocks(page):
            if block.language == "python":
                ast.parse(block.text if not block.text.startswith("@") else f"{block.text}\ndef it(): ...")
            elif block.language == "toml":
                tomllib.loads(block.text)
            else:
                assert block.language in ("", "sh"), f"{page}:{block.line}: {block.language}"


def test_the_checks_find_what_they_look_for() -> None:
    """A parser of pages that finds nothing would find nothing wrong."""
    found = [str(command) for page in PAGES for command in commands(page)]
    assert any(text.endswith(": isotherm pull Qwen/Qwen3-30B-A3B-GGUF --dry-run") for text in found)
    assert any(text.endswith((": isotherm chat", ": .venv/bin/isotherm chat")) for text in found)
    assert "what-is-told" in anchors("docs/operation.md")
    assert any(target == "docs/architecture.md" for _, target in links("README.md"))


def _there(text: str) -> bool:
    return (ROOT / text).exists() or (ROOT / "tests" / text).exists()


def _is_code(at: Path, names: list[str]) -> bool:
    """Whether names lead to a file and on to what is written in it."""
    for depth, name in enumerate(names):
        if (at / name).is_dir():
            at = at / name
            continue
        file = at / f"{name}.py"
        rest = names[depth + 1 :] if file.exists() else names[depth:]
        text = (file if file.exists() else at / "__init__.py").read_text(encoding="utf-8")
        return all(re.search(rf"\b{re.escape(each)}\b", text) for each in rest)
    return True
