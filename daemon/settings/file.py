"""SettingsFile: a configuration file, read and checked against the table of keys."""

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config import ConfigError
from .keys import KEYS, POOL_DEFAULT, TABLES, Key, WrongTypeError, keys_of

_MOST_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFile:
    """values: by the field of `Config`. models: by name, values of theirs alone. default: of the models."""

    path: Path
    values: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    default: str | None = None


def find_file(environ: Mapping[str, str]) -> Path | None:
    """The file where none is named: the user's, else the system's, as far as they exist."""
    named = environ.get("ISOTHERM_CONFIG", "")
    if named:
        return Path(named)
    home = environ.get("XDG_CONFIG_HOME", "")
    user = Path(home) if os.path.isabs(home) else Path(environ.get("HOME", "/")) / ".config"
    places = [user / "isotherm" / "config.toml", Path("/etc/isotherm/config.toml")]
    unit = environ.get("CONFIGURATION_DIRECTORY", "").split(":")[0]
    return next((path for path in ([Path(unit) / "config.toml"] if unit else []) + places if path.is_file()), None)


def read_file(path: Path) -> SettingsFile:
    """Raises ConfigError, which names the key, the line and what would be right."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ConfigError(f"{path}: larger than {_MOST_BYTES} bytes, which no configuration is")
        content = tomllib.loads(data.decode())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}; name a TOML file by --config") from error
    except (ValueError, RecursionError) as error:  # no TOML, or not UTF-8
        raise ConfigError(f"{path}: {error}; isotherm config sample prints one to begin with") from error
    reader = _Reader(path, data.decode())
    models = {name: dict(reader.values(f"models.{name}", table)) for name, table in reader.models(content)}
    values = dict(pair for table in TABLES for pair in reader.values(table, content.get(table, {})))
    default = values.pop(POOL_DEFAULT.field, None)
    reader.check_tables(content)
    if default is not None and default not in models:
        known = ", ".join(models) or "none"
        raise ConfigError(f"{path}: default in [pool] is {default!r}, but there is no [models.{default}], only {known}")
    return SettingsFile(path=path, values=values, models=models, default=default)


class _Reader:
    def __init__(self, path: Path, text: str) -> None:
        self._path, self._lines = path, text.splitlines()

    def values(self, table: str, content: Any) -> Iterator[tuple[str, Any]]:
        """By field, those of a table."""
        if not isinstance(content, dict):
            raise ConfigError(f"{self._path}: {table} must be a table; write [{table}] before its keys")
        known = {key.name: key for key in keys_of(table)}
        for name, value in content.items():
            if name not in known:
                raise ConfigError(self._unknown(table, name, known))
            yield known[name].field, self._value(known[name], table, value)
        if table.startswith("models.") and "path" not in content:
            raise ConfigError(f"{self._path}: [{table}] has no path; name a .gguf file, a folder or a pulled model")

    def models(self, content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        models = content.get("models", {})
        if not isinstance(models, dict):
            raise ConfigError(f"{self._path}: models must be tables; write [models.NAME] before the keys of each")
        for name, table in models.items():
            if not _NAME.fullmatch(name):
                raise ConfigError(f"{self._path}: {name!r} is no name of a model; letters, digits and ._:/- make one")
            yield name, table

    def check_tables(self, content: Mapping[str, Any]) -> None:
        for name in content:
            if name in (*TABLES, "models"):
                continue
            owner = next((key.table for key in KEYS if key.name == name), None)
            near = difflib.get_close_matches(name, (*TABLES, "models"), 1)
            hint = f"it belongs into [{owner}]" if owner else f"did you mean [{near[0]}]?" if near else _tables()
            raise ConfigError(f"{self._path}{self._line(name)}: {name} is no table; {hint}")

    def _value(self, key: Key, table: str, value: Any) -> Any:
        try:
            return key.kind.read(value, self._path.absolute().parent)
        except (WrongTypeError, ValueError, RuntimeError):
            line = self._line(key.name)
            raise ConfigError(
                f"{self._path}{line}: {key.name} in [{table}] is {value!r}; it must be {key.kind.words}"
            ) from None

    def _unknown(self, table: str, name: str, known: Mapping[str, Key]) -> str:
        elsewhere = next((key.table for key in (*KEYS, POOL_DEFAULT) if key.name == name), None)
        near = difflib.get_close_matches(name, known, 1, 0.5)
        if elsewhere is not None:
            hint = f"it belongs into [{elsewhere}]"
        elif near:
            hint = f"did you mean {near[0]}?"
        else:
            hint = f"its keys are {', '.join(known)}"
        return f"{self._path}{self._line(name)}: [{table}] has no key {name}; {hint}"

    def _line(self, name: str) -> str:
        """Of the first that begins with a name, for people."""
        start = re.compile(rf"\s*\[*\"?{re.escape(name)}\b")
        return next((f", line {n}" for n, line in enumerate(self._lines, 1) if start.match(line)), "")


def _tables() -> str:
    return f"the tables are {', '.join(f'[{table}]' for table in TABLES)} and [models.NAME]"
