"""Where the engine's side and the HTTP side are joined: a server over the models that a daemon knows."""

import time
from collections.abc import Mapping
from typing import NamedTuple

from ...api.server import Server
from ...api.service import Service
from ...api.sinks import Sinks
from ..api_keys import KeyFile
from ..assembly import Assembly
from ..config import Config
from ..events import EventLog
from ..fleet.easing import measures_of
from ..fleet.fleet import Fleet
from ..fleet.host import Hosted, ModelLoader
from ..fleet.metrics import FleetMetrics
from ..fleet.status import status_of
from ..memory import GIB
from ..pressure import PressureWatch
from .live import limits_of

Models = Fleet[Hosted[Service]]


class Joined(NamedTuple):
    """The server, its models, none of which is loaded yet, what loads them, and what sees to memory."""

    server: Server
    fleet: Models
    loader: ModelLoader[Service]
    watch: PressureWatch


def join(configs: Mapping[str, Config], keys: KeyFile, sinks: Sinks) -> Joined:
    """Put them together.

    configs: of each model by its id, the default first. What is of all models is taken from that one.
    """
    config, events = next(iter(configs.values())), EventLog()
    created, since = int(time.time()), time.monotonic()
    limits = limits_of(config)
    names = ("reasoning_content", "reasoning") if config.reasoning_alias else ("reasoning_content",)

    def service(model_id: str, assembly: Assembly) -> Service:
        return Service(
            client=assembly.engine.client,
            tokenizer=assembly.tokenizer,
            chat_template=assembly.chat_template,
            structures=assembly.structures,
            model_id=model_id,
            created=assembly.created,
            events=assembly.engine.events,
            status=assembly.status,
            plan=assembly.plan_json,
            experts=assembly.experts.show,
            limits=limits,
            reasoning_names=names,
        )

    loader = ModelLoader(configs, events, service)
    fleet: Models = Fleet(tuple(configs), loader, events, keep_s=config.keep_s, max_waiting=config.max_queued)
    watch = PressureWatch(
        measures_of(fleet),
        events,
        most_stalled=config.memory_stall,
        least_free=int(config.memory_free_gib * GIB),
    )
    server = Server(
        models=fleet,
        created=created,
        metrics=FleetMetrics(fleet, events, (sinks.metrics, watch)),
        events=events,
        status=lambda model: status_of(fleet, model, since, events),
        api_keys=frozenset(keys.names),
        key_names=keys.names,
        cors_origins=config.cors_origins,
        sinks=sinks.all,
        limits=limits,
    )
    return Joined(server, fleet, loader, watch)
