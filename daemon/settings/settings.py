"""Settings: file and flags put together."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..config import Config, ConfigError
from ..library.resolve import model_path
from .file import SettingsFile, find_file, read_file
from .keys import KEYS, Key

DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the command line says. flags: by the field of `Config`, those that were given. models: paths or names.
    file: None is the one that is found."""

    flags: Mapping[str, Any]
    models: tuple[Path, ...] = ()
    file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """models: the settings of each by its name, the default first. origins: by field, where a value that is no default
    comes from; by "NAME.field" where it is one model's own."""

    models: Mapping[str, Config]
    origins: Mapping[str, str]
    file: Path | None

    @property
    def config(self) -> Config:
        """The default model's settings, of which the server's are a part."""
        return next(iter(self.models.values()))

    @contextmanager
    def own_words(self) -> Iterator[None]:
        """Errors name the key in the file, and not the flag, where the value of the default model came from there."""
        try:
            yield
        except ConfigError as error:
            raise ConfigError(_by_keys(str(error), self._from_file())) from error

    def _from_file(self) -> list[Key]:
        origins = [(key, origin_of(self, key.field)) for key in KEYS]
        return [key for key, origin in origins if origin != DEFAULT and not origin.startswith("-")]


def origin_of(settings: Settings, field: str) -> str:
    """Where the default model's value comes from."""
    own = settings.origins.get(f"{settings.config.model_id}.{field}")
    return own or settings.origins.get(field, DEFAULT)


def gather(told: Told, environ: Mapping[str, str]) -> Settings:
    """Flags go before a model's own keys, those before the file's others, those before defaults. Raises ConfigError,
    LibraryError for a name that several pulled models have."""
    path = told.file or find_file(environ)
    file = SettingsFile(path=Path("-")) if path is None else read_file(path)
    if path is not None:
        _check_alone(file)
    origins = {name: _origin(file, name) for name in file.values} | {name: _flag(name) for name in told.flags}
    models: dict[str, Config] = {}
    for name, own in _wanted(told, file):
        config = Config(**dict(file.values) | dict(own) | dict(told.flags) | {"name": name, "model": _model(own)})
        if config.model_id in models:
            raise ConfigError(f"two models have the same name: {config.model_id}; rename the file or folder of one")
        models[config.model_id] = config
        for field in own.keys() - told.flags.keys() - {"model"}:
            origins[f"{config.model_id}.{field}"] = f"{file.path} [models.{name}]"
    if "plan" in told.flags and len(models) > 1:
        raise ConfigError(
            f"--plan is {told.flags['plan']}, and a plan is of one model; name it in the [models] of a file"
        )
    return Settings(models=models, origins=origins, file=path)


def _wanted(told: Told, file: SettingsFile) -> Sequence[tuple[str | None, Mapping[str, Any]]]:
    """The names in the file, and own values, of the models to be served."""
    if told.models:
        named = [(path, str(path)) for path in told.models]
        return [(text, file.models[text]) if text in file.models else (None, {"model": path}) for path, text in named]
    if not file.models:
        return [(None, {})]
    names = sorted(file.models, key=lambda name: name != (file.default or next(iter(file.models))))
    return [(name, file.models[name]) for name in names]


def _model(own: Mapping[str, Any]) -> Path | None:
    path = own.get("model")
    return None if path is None else model_path(path)


def _check_alone(file: SettingsFile) -> None:
    """Have `Config` check the file by itself, in the words of the file."""
    for name, own in (("", {}), *file.models.items()):
        try:
            Config(**dict(file.values) | dict(own) | {"model": None})
        except ConfigError as error:
            where = f" [models.{name}]" if name else ""
            raise ConfigError(f"{file.path}{where}: {_by_keys(str(error))}") from error


def _by_keys(message: str, keys: Sequence[Key] = KEYS) -> str:
    """A message with keys for their flags."""
    flags = {key.flag or f"--{key.name.replace('_', '-')}": key for key in keys}

    def name(match: re.Match[str]) -> str:
        key = flags.get(match[0])
        return match[0] if key is None else f"{key.name} in [{key.table}]"

    return re.sub(r"--[a-z-]+", name, message)


def changed(before: Config, after: Config) -> list[Key]:
    """The keys whose values differ."""
    return [key for key in KEYS if getattr(before, key.field) != getattr(after, key.field)]


def differing(before: Settings, after: Settings) -> tuple[dict[str, Config], list[str]]:
    """By name, models as they are now but for what can change at once; and the keys that a restart would change."""
    live = {key.field for key in KEYS if key.live}
    stale: list[str] = []
    for name in before.models.keys() ^ after.models.keys():
        stale.append(f"models.{name}")
    merged: dict[str, Config] = {}
    for name, old in before.models.items():
        new = after.models.get(name, old)
        merged[name] = replace(old, **{field: getattr(new, field) for field in live})
        stale += [key.path for key in changed(merged[name], new)]
    return merged, list(dict.fromkeys(stale))


def _origin(file: SettingsFile, field: str) -> str:
    key = next(key for key in KEYS if key.field == field)
    return f"{file.path} [{key.table}]"


def _flag(field: str) -> str:
    return next((key.flag for key in KEYS if key.field == field and key.flag), "a flag")
