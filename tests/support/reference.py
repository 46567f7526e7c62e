"""The reference, made from the code: python tests/support/reference.py writes docs/reference.md."""

import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from isotherm.api.openapi import document
from isotherm.daemon.cli.app import app
from isotherm.daemon.cli.output import ExitCode
from isotherm.daemon.config import Config
from isotherm.daemon.settings.keys import KEYS, MODEL_PATH, POOL_DEFAULT, Key
from prometheus_client.metrics_core import Metric
from support.api_service import app_of, make_service
from support.metric_families import families, families_of_several
from typer.main import get_command

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"
_HEAD = """# Reference

Made from the code by `make docs`; what is wrong here is wrong there. What things are for is said on the other pages:
[configuration.md](configuration.md), [api.md](api.md), [operation.md](operation.md).
"""


def reference() -> str:
    """The whole page."""
    parts = (_commands(), _keys(), _exit_codes(), _routes(), _metrics())
    return "\n".join((_HEAD, *("\n".join(part) for part in parts)))


def all_commands() -> Iterator[tuple[str, Any]]:
    """Every command that is no group, by its whole name."""
    yield from _walk("isotherm", get_command(app))


def _walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    children: Mapping[str, Any] = getattr(command, "commands", {})
    if not children:
        yield name, command
    for child, inner in children.items():
        yield from _walk(f"{name} {child}", inner)


def _commands() -> Iterator[str]:
    yield "## Commands\n"
    for name, command in all_commands():
        arguments = [_metavar(param) for param in command.params if param.param_type_name == "argument"]
        usage = " ".join((name, "[OPTIONS]", *arguments))
        yield f"### {name}\n\n`{usage}`\n"
        yield _told(command.help or "")
        rows = [_option(param) for param in command.params if param.name != "help"]
        yield from _table(("argument or option", "default", "what it does"), [row for row in rows if row])


def _told(text: str) -> str:
    """Paragraphs of help; examples as code."""
    parts = [" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n")]
    said = [part for part in parts if not part.startswith("Example: ")]
    examples = [f"    {part.removeprefix('Example: ')}" for part in parts if part.startswith("Example: ")]
    return "\n\n".join([*said, *(["\n".join(examples)] if examples else [])]) + "\n"


def _metavar(param: Any) -> str:
    """By what is the same in all versions of typer."""
    name = param.metavar or param.name.upper()
    if param.param_type_name != "argument" or param.required or name.startswith("["):
        return str(name)
    return f"[{name}]"


def _option(param: Any) -> tuple[str, str, str]:
    flag = getattr(param, "is_flag", False)
    names = [] if param.param_type_name == "argument" else [", ".join([*param.opts, *param.secondary_opts])]
    shown = param.show_default if isinstance(param.show_default, str) else _value(param.default, flag)
    return f"`{' '.join([*names, *([] if flag else [_metavar(param)])])}`", shown, " ".join((param.help or "").split())


def _value(value: Any, flag: bool) -> str:
    if value is None or callable(value) or flag or value == ():
        return ""
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _keys() -> Iterator[str]:
    yield "## Configuration keys\n"
    yield "*live*: a reload changes it; of the others it says that a restart is needed.\n"
    rows = [_key(key) for key in (*KEYS, POOL_DEFAULT, MODEL_PATH)]
    yield from _table(("key", "value", "default", "flag of `serve`", "live", "what it is"), rows)
    yield "`[models.NAME]` takes every key of `[model]` too.\n"


def _key(key: Key) -> tuple[str, ...]:
    defaults = {each.name: each.default for each in fields(Config) if each.default is not MISSING}
    default = defaults.get(key.field)
    shown = "" if default is None else ", ".join(default) if isinstance(default, tuple) else str(default)
    shown = shown.lower() if isinstance(default, bool) else shown
    return f"`{key.path}`", key.kind.words, shown, f"`{key.flag}`" * bool(key.flag), "yes" * key.live, key.help


def _exit_codes() -> Iterator[str]:
    yield "## Exit codes\n"
    rows = [("0", "all is well"), *((str(code.value), code.cause) for code in ExitCode)]
    rows.append(("128 + n", "ended by signal n while loading"))
    yield from _table(("code", "cause"), rows)


def _routes() -> Iterator[str]:
    yield "## Routes\n"
    yield "Their bodies and answers by the names that they have in `GET /openapi.json`.\n"
    paths = document(app_of(make_service()))["paths"]
    rows = [
        (f"`{method.upper()} {path}`", _schemas(told.get("requestBody", {})), _schemas(told["responses"]["200"]))
        for path, methods in sorted(paths.items())
        for method, told in methods.items()
    ]
    yield from _table(("route", "body", "answer"), rows)


def _schemas(told: Mapping[str, Any]) -> str:
    """The schemas of a body by name, and the media types of those that are no JSON."""
    found = []
    for media, content in told.get("content", {}).items():
        schema = content.get("schema", {})
        references = [each.get("$ref", "") for each in (schema, *schema.get("anyOf", ()), *schema.get("oneOf", ()))]
        names = [reference.rpartition("/")[2] for reference in references if reference]
        found += names or ([] if media == "application/json" else [media])
    return ", ".join(f"`{name}`" for name in found)


def _metrics() -> Iterator[str]:
    yield "## Metrics\n"
    yield "[operation.md](operation.md#what-is-told) says what they mean.\n"
    known = {family.name: family for family in (*families(), *families_of_several())}
    yield from _table(("metric", "kind", "what it tells"), [_metric(known[name]) for name in sorted(known)])


def _metric(family: Metric) -> tuple[str, str, str]:
    suffix = "_total" if family.type == "counter" else ""
    return f"`{family.name}{suffix}`", family.type, family.documentation


def _table(titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    if not rows:
        return
    yield f"| {' | '.join(titles)} |"
    yield "|" + "---|" * len(titles)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
    yield ""


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
