"""Settings as rows, for people and programs."""

from pathlib import Path
from typing import Any

from .keys import KEYS, keys_of
from .settings import Settings, origin_of

Row = tuple[str, Any, str]  # key, value and where it comes from


def rows(settings: Settings) -> list[Row]:
    """Every key once, of models then those that each has of its own."""
    found = [(key.path, _plain(getattr(settings.config, key.field)), origin_of(settings, key.field)) for key in KEYS]
    for name, config in settings.models.items():
        found.append((f"models.{name}.path", _plain(config.model) or "the demo model", str(settings.file or "")))
        for key in keys_of("model"):
            origin = settings.origins.get(f"{name}.{key.field}")
            if origin is not None:
                found.append((f"models.{name}.{key.name}", _plain(getattr(config, key.field)), origin))
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value
