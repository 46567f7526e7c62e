"""Live: what of a running daemon goes by settings that a reload changes."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...api.server import Server
from ...api.service import Limits
from ...api.sinks import Sinks
from ..api_keys import KeyFile
from ..config import Config
from ..fleet.fleet import Fleet
from ..fleet.host import Hosted, ModelLoader
from ..queue_books import QueueLimits
from .address import OPEN
from .server import DaemonServer

_MIB = 2**20


def limits_of(config: Config) -> Limits:
    """What one client may take."""
    return Limits(
        max_body=int(config.max_body_mib * _MIB),
        max_bodies=int(config.max_bodies_mib * _MIB),
        body_timeout=config.body_timeout_s,
        max_choices=min(config.max_choices, config.max_queued),  # more could never be queued
        ping_interval=config.ping_interval_s,
        write_timeout=config.write_timeout_s,
        step_limit=config.step_limit_s,
        max_responses=config.max_responses,
        max_response_bytes=int(config.max_responses_mib * _MIB),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """local: whether only this machine reaches the server."""

    server: Server
    sinks: Sinks
    fleet: Fleet[Hosted[Any]]
    loader: ModelLoader[Any]
    daemon: DaemonServer
    local: bool

    def take(self, models: Mapping[str, Config], keys: KeyFile) -> None:
        """Go by these from now on; what is open goes on. models: by name, the default first.

        Raises OSError, before anything changes, for an access log that cannot be written.
        """
        config = next(iter(models.values()))
        self.sinks.log_to(config.access_log)
        logging.getLogger().setLevel(config.log_level.upper())
        self.server.doors.set(keys.names, keys.names, config.cors_origins)
        self.server.limits.become(limits_of(config))
        self.loader.configs = models
        queue = QueueLimits(max_queued=config.max_queued, max_queued_tokens=config.max_queued_tokens)
        for _, hosted in self.fleet.loaded():
            hosted.limit_queue(queue)
        self.fleet.keep_s, self.fleet.max_waiting = config.keep_s, config.max_queued
        self.daemon.drain_for(config.drain_s)
        self.tell(keys)

    def tell(self, keys: KeyFile) -> None:
        """Record it where anybody may use the server, or its keys."""
        if not keys.names and not self.local:
            self.server.events.record("open_to_network", OPEN)
        if keys.exposed is not None:
            self.server.events.record("api_keys_exposed", keys.exposed)
