"""A configuration file to begin with, and one of given settings, as TOML."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..config import Config
from .keys import KEYS, MODEL_PATH, POOL_DEFAULT, TABLES, Key, keys_of
from .settings import Settings

_HEAD = "# Isotherm. Each line that is commented out has its default; paths are taken from this file's folder."


def sample() -> str:
    """All keys with their defaults, commented out."""
    lines = [_HEAD]
    for table in TABLES:
        lines += ["", f"[{table}]"]
        for key in keys_of(table):
            value = key.kind.sample if key is POOL_DEFAULT else _default(key)
            lines += [f"# {key.help}", f"#{key.name} = {value}"]
    lines += ["", "# One table for each model; it may have any key of [model], too.", "#[models.NAME]"]
    lines += [f"# {MODEL_PATH.help}", f"#{MODEL_PATH.name} = {MODEL_PATH.kind.sample}"]
    return "\n".join(lines) + "\n"


def as_toml(settings: Settings) -> str:
    """What is set, as a file that says the same."""
    default = Config()
    lines: list[str] = []
    for table in TABLES:
        own = list(_set(table, settings.config, default))
        if table == "pool" and len(settings.models) > 1:
            own.append(f"default = {_toml(next(iter(settings.models)))}")
        if own and table != "model":
            lines += [f"[{table}]", *own, ""]
    for name, config in settings.models.items():
        if config.model is not None:
            lines += [f"[models.{_toml(name)}]", f"path = {_toml(config.model.absolute())}"]
            lines += [*_set("model", config, default), ""]
    return "\n".join(lines)


def _set(table: str, config: Config, default: Config) -> Iterator[str]:
    for key in KEYS:
        if key.table == table and getattr(config, key.field) != getattr(default, key.field):
            yield f"{key.name} = {_toml(getattr(config, key.field))}"


def _default(key: Key) -> str:
    value = getattr(Config(), key.field)
    return key.kind.sample if value is None else _toml(value)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    text = json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)
    return text.replace("\x7f", "\\u007f")  # which JSON lets stand
