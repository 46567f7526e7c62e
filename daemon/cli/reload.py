"""Reload: what a running daemon takes over of settings that have changed, and what it cannot."""

import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import FrameType

from ...experts.errors import ModelError
from ..api_keys import NO_KEYS, KeyFile, read_key_file
from ..config import Config, ConfigError
from ..events import EventLog
from ..settings.settings import Settings, Told, differing, gather

logger = logging.getLogger(__name__)

Apply = Callable[[Mapping[str, Config], KeyFile], None]


class Reload:
    """apply: takes over the settings of models, by name, and the keys; nothing if it raises OSError. One at a time."""

    def __init__(self, told: Told, settings: Settings, apply: Apply, events: EventLog) -> None:
        self._told, self._settings, self._apply, self._events = told, settings, apply, events
        self._lock = threading.Lock()

    def __call__(self, environ: Mapping[str, str] = os.environ) -> str:
        """Read everything again and take over what can change; what came of it, in words. Where something is wrong,
        nothing changes."""
        with self._lock:
            try:
                after = gather(self._told, environ)
                after = replace(after, models=_at_port(after.models, self._settings.config.port))
                models, stale = differing(self._settings, after)
                with after.own_words():
                    keys = keys_of(next(iter(models.values())))
                self._apply(models, keys)
            except (ConfigError, ModelError, OSError) as error:
                self._events.record("reload_refused", f"{error}; nothing has changed", logging.ERROR)
                return f"not reloaded: {error}"
            self._settings = replace(self._settings, models=models)
            if stale:
                self._events.record("reload_incomplete", f"restart for {', '.join(stale)}", logging.WARNING)
                return f"reloaded, but restart for {', '.join(stale)}"
            logger.info("reloaded")
            return "reloaded"


class Hangup:
    """SIGHUP of a daemon without a terminal: a reload. One that comes before there is something to reload waits."""

    def __init__(self) -> None:
        self._reload: Callable[[], object] | None = None
        self._asked = False

    def __call__(self, sig: int, frame: FrameType | None) -> None:
        """As a signal's handler."""
        if self._reload is None:
            self._asked = True
        else:
            threading.Thread(target=self._reload, name="isotherm-reload").start()

    def begin(self, reload: Callable[[], object]) -> None:
        """Call this from now on, and at once if that was asked for before."""
        self._reload = reload
        if self._asked:
            reload()


def keys_of(config: Config) -> KeyFile:
    """The accepted keys. Raises ConfigError."""
    return NO_KEYS if config.api_key_file is None else read_key_file(config.api_key_file)


def _at_port(models: Mapping[str, Config], port: int) -> dict[str, Config]:
    """As they are served: port 0 has become another."""
    return {name: replace(config, port=port) if config.port == 0 else config for name, config in models.items()}


def has_terminal() -> bool:
    """Whether SIGHUP tells that a terminal has closed, instead of asking for a reload."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
