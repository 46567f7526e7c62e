"""Server: what the HTTP side is given, with all the models that it serves."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..daemon.errors import EngineError
from ..daemon.events import EventLog
from .doors import Doors
from .errors import UnknownModelError
from .record import Sink
from .service import Limits, Service


class Served(Protocol):
    """A loaded model."""

    @property
    def service(self) -> Service: ...


class Held(Protocol):
    """A request's hold on a loaded model, see `daemon.fleet.member.Lease`."""

    @property
    def value(self) -> Served: ...

    def keep_for(self, seconds: float | None) -> None: ...

    def release(self) -> None: ...


class Models(Protocol):
    """The models that are known, see `daemon.fleet.fleet.Fleet`."""

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def default(self) -> str: ...

    @property
    def refusal(self) -> str | None: ...

    def ready(self) -> Iterable[tuple[str, Served]]: ...

    def find(self, name: str) -> Served | None: ...

    def loading(self) -> Sequence[str]: ...

    def show(self) -> Sequence[Mapping[str, Any]]: ...

    def lease_now(self, name: str) -> Held | None: ...

    async def lease(self, name: str) -> Held: ...

    def unload(self, name: str) -> None: ...


class Rendered(Protocol):
    """What /metrics shows."""

    def render(self) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """created: seconds since the epoch. status: what /admin/status answers, of a model by its id. api_keys: sha256
    digests of the accepted keys; empty leaves the server open. key_names: by digest, for logs and metrics; keys of one
    name are one tenant's. cors_origins: of the pages that browsers let in, such as https://chat.example; "*" is all.
    sinks: are told of each request when it has ended. doors: where keys and origins may change.
    """

    models: Models
    created: int
    metrics: Rendered
    events: EventLog
    status: Callable[[str | None], Mapping[str, Any]]
    api_keys: frozenset[bytes] = frozenset()
    key_names: Mapping[bytes, str] = field(default_factory=dict)
    cors_origins: tuple[str, ...] = ()
    sinks: tuple[Sink, ...] = ()
    limits: Limits = field(default_factory=Limits)
    doors: Doors = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "doors", Doors(self.api_keys, self.key_names, self.cors_origins))

    def named(self, model: str | None, plain: Callable[[str], str] = str) -> str:
        """The id of the model that a request names, as it is or plainly; none means the default. Raises
        UnknownModelError."""
        names = self.models.names
        if not model:
            return self.models.default
        for name in (model, plain(model)):
            if name in names:
                return name
        raise UnknownModelError(f"the model {model[:200]!r} is not served here; this server has {_listed(names)}")

    def service(self, model: str | None) -> Service:
        """A model as it is loaded now. Raises UnknownModelError, EngineError for one that is not loaded."""
        name = self.named(model)
        found = self.models.find(name)
        if found is None:
            raise EngineError(f"the model {name!r} is not loaded; the next request for it loads it")
        return found.service

    def check_open(self, account: str) -> None:
        """Raise what the queue would raise for any request, where it is clear whose queue that is."""
        if len(self.models.names) == 1:
            for _, served in self.models.ready():
                served.service.client.check_open(account)

    def unready(self) -> str | None:
        """Why requests cannot be served now, None if they can. One whose model is to be loaded only waits."""
        if self.models.refusal is not None:
            return self.models.refusal
        for name, served in self.models.ready():
            reason = served.service.unready()
            if reason is not None:
                return reason if len(self.models.names) == 1 else f"{name}: {reason}"
        return None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
