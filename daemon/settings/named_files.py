"""The files that settings name: whether they are there."""

from collections.abc import Iterator
from pathlib import Path

from ..api_keys import read_key_file
from ..config import ConfigError, readable
from .settings import Settings


def check_files(settings: Settings) -> None:
    """Raise ConfigError for a key file that cannot be read, and for models and plans that are not there."""
    if settings.config.api_key_file is not None:
        with settings.own_words():
            read_key_file(settings.config.api_key_file)
    for key, path in _named(settings):
        if not path.exists():
            raise ConfigError(
                f"{key} is {readable(path)}, and nothing is there; name a file or folder, or a pulled model"
            )


def _named(settings: Settings) -> Iterator[tuple[str, Path]]:
    for name, config in settings.models.items():
        for key, path in (("path", config.model), ("plan", config.plan)):
            if path is not None:
                yield f"models.{name}.{key}", path
