"""`isotherm serve`: the daemon. This file alone joins the engine's side and the HTTP side."""

import faulthandler
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from ...experts.progress import Progress
from ..api_keys import KeyFile
from ..config import Config, LogLevel
from ..errors import EngineError
from ..notify import notifier_from
from ..paths import log_file
from ..settings.settings import Settings, Told, gather
from ..state import read_state
from .activation import passed_listener
from .address import OPEN, BindError, bind, is_local
from .announced import State, announced
from .background import detach, wait_until_ready
from .model_options import AcceleratorNames, KvKind
from .output import ExitCode, err, fail, refusals
from .program import program
from .progress import both
from .reload import Hangup, Reload, has_terminal, keys_of
from .serve_options import (
    AccessLog,
    AffinityName,
    Alias,
    ConfigFile,
    Context,
    CorsOrigins,
    Keep,
    Keys,
    KvGib,
    KvOffloadGib,
    Level,
    MaxQueued,
    Models,
    NoPackCache,
    PlanFile,
    ReasoningAlias,
    Threads,
    Traces,
    given_flags,
)

if TYPE_CHECKING:
    from ...api.sinks import Sinks
    from .server import DaemonServer

logger = logging.getLogger(__name__)

_DEFAULT = Config()


def serve(
    ctx: typer.Context,
    models: Models = None,
    config: ConfigFile = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = _DEFAULT.host,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = _DEFAULT.port,
    threads: Threads = _DEFAULT.threads,
    affinity: AffinityName = _DEFAULT.affinity,
    keep: Keep = _DEFAULT.keep_s,
    context: Context = _DEFAULT.context,
    kv_gib: KvGib = _DEFAULT.kv_gib,
    kv_offload_gib: KvOffloadGib = _DEFAULT.kv_offload_gib,
    max_running: Annotated[int, typer.Option(help="Requests in one step of the model.")] = _DEFAULT.max_running,
    max_queued: MaxQueued = _DEFAULT.max_queued,
    kv_cache: KvKind = _DEFAULT.kv_cache,
    no_pack_cache: NoPackCache = not _DEFAULT.pack_cache,
    plan: PlanFile = _DEFAULT.plan,
    accelerator: AcceleratorNames = None,
    api_key_file: Keys = _DEFAULT.api_key_file,
    cors_origin: CorsOrigins = None,
    access_log: AccessLog = _DEFAULT.access_log,
    metrics_alias: Alias = _DEFAULT.metrics_alias,
    traces: Traces = _DEFAULT.traces,
    reasoning_alias: ReasoningAlias = _DEFAULT.reasoning_alias,
    background: Annotated[bool, typer.Option("--background", help="Return as soon as the daemon is ready.")] = False,
    log_level: Level = _DEFAULT.log_level,
) -> None:
    """Serve one or several models by an OpenAI-compatible API.

    SIGTERM or Ctrl-C lets open requests finish; a second one cuts them off.

    Exit codes: 1 another failure, 2 a wrong setting, 3 the model cannot be
    served, 4 it does not fit into memory, 5 the address cannot be listened
    on, 7 the engine failed, 8 cut off, 128 + n ended by signal n.

    Example: isotherm serve model.gguf --threads 8 --context 16384 --background
    """
    told = Told(flags=given_flags(ctx), models=tuple(models or ()), file=config)
    with refusals():
        settings = gather(told, os.environ)
        with settings.own_words():
            keys = keys_of(settings.config)
    _serve(told, settings, keys, background=background)


def _serve(told: Told, settings: Settings, keys: KeyFile, *, background: bool) -> None:
    listener, address = _listen(settings.config)
    told = replace(told, flags=dict(told.flags) | address if "host" in address else told.flags)
    models = {name: replace(each, **address) for name, each in settings.models.items()}
    settings = replace(settings, models=models)
    config, port = settings.config, settings.config.port
    with listener:
        if background and not keys.names and not is_local(listener):  # else the log is seen anyway
            err.print(f"isotherm: {OPEN}", style="red", markup=False, highlight=False, soft_wrap=True)
        log = log_file(port) if background else None
        pid = None if log is None else detach(log)
        if pid is None:
            _set_up_logging(config.log_level)
            with announced(config, log, notifier_from(os.environ)) as state:
                _run(told, settings, keys, listener, state)
            return
    wait_until_ready(pid, port, log_file(port))


def _listen(config: Config) -> tuple[socket.socket, dict[str, Any]]:
    """The socket to serve on, the service manager's or else one of our own, and what it changes in the config."""
    try:
        listener = passed_listener(os.environ)
    except (BindError, OSError) as error:
        fail(f"the socket of the service manager cannot be used: {error}", ExitCode.ADDRESS)
    if listener is None:
        listener = _bind(config)
        return listener, {"port": listener.getsockname()[1]}
    host, port = listener.getsockname()[:2]
    return listener, {"host": host, "port": port}


def _bind(config: Config) -> socket.socket:
    other = read_state(config.port) if config.port else None
    if other is not None:
        fail(
            f"port {config.port} is taken by your daemon {other.pid}, which serves {other.model}; "
            f"end it by: {program()} stop --port {config.port}",
            ExitCode.ADDRESS,
        )
    try:
        return bind(config.host, config.port)
    except BindError as error:
        fail(f"{error}; choose another --port or --host", ExitCode.ADDRESS)


def _run(told: Told, settings: Settings, keys: KeyFile, listener: socket.socket, state: State) -> None:
    _stop_at_once_on_signals()
    hangup = Hangup()
    if not has_terminal():
        signal.signal(signal.SIGHUP, hangup)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # texts come one by one: a pool of threads would idle
    sinks = _open_sinks(settings.config)
    from ...api.loading import answer_while_loading
    from ..housekeeping import tidy
    from .loading import answering

    try:
        with _kept_for_good(), answering(listener, settings.config.model_id, answer_while_loading) as tell:
            server = _load(told, settings, keys, sinks, listener, state, hangup, tell)
        threading.Thread(target=tidy, name="isotherm-tidy", daemon=True).start()
        reason = server.serve_on(listener)
    except BindError as error:
        fail(str(error), ExitCode.ADDRESS)
    except EngineError as error:
        fail(str(error), ExitCode.ENGINE)
    finally:
        sinks.close()
    if reason is not None:
        raise typer.Exit(reason)


def _open_sinks(config: Config) -> "Sinks":
    from ...api.sinks import Sinks
    from ...api.traces import MissingPackagesError

    try:
        return Sinks(config.access_log, config.traces, config.model_id)
    except OSError as error:
        fail(f"--access-log {config.access_log} cannot be written: {error}", ExitCode.USAGE)
    except MissingPackagesError as error:
        fail(str(error), ExitCode.USAGE)


@contextmanager
def _kept_for_good() -> Iterator[None]:
    """What is made meanwhile lives as long as the process, so no garbage is looked for in it: neither now, where that
    took a sixth of a start, nor in the pauses of a running daemon."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _load(
    told: Told,
    settings: Settings,
    keys: KeyFile,
    sinks: "Sinks",
    listener: socket.socket,
    state: State,
    hangup: Hangup,
    tell: Progress,
) -> "DaemonServer":
    """The server over the models, of which the default is loaded and at work. tell: how far it is."""
    from ...api.app import create_app
    from .join import join
    from .live import Live
    from .server import DaemonServer

    server, fleet, loader, watch = join(settings.models, keys, sinks)
    try:
        with refusals(), settings.own_words(), state.progress() as report:
            hosted = loader.assembled(fleet.default, both(report, tell))
    except OSError as error:  # compiled kernels and the state are written while loading
        remedy = "free some space, or set XDG_CACHE_HOME and XDG_STATE_HOME to folders that can be written"
        fail(f"loading failed: {error}; {remedy}", ExitCode.FAILURE)
    fleet.adopt(fleet.default, hosted)
    logger.info("loaded %s in %.1f s", fleet.default, hosted.assembly.load_s)

    def apply(models: Mapping[str, Config], keys: KeyFile) -> None:
        live.take(models, keys)
        state.drain_for(models[fleet.default].drain_s)

    reload = Reload(told, settings, apply, server.events)

    def ready() -> None:
        state.ready()
        hangup.begin(lambda: state.reload(reload))

    daemon = DaemonServer(create_app(server), fleet, settings.config, ready, on_stopping=state.stopping, watch=watch)
    live = Live(server=server, sinks=sinks, fleet=fleet, loader=loader, daemon=daemon, local=is_local(listener))
    live.tell(keys)
    state.watch(daemon.fault, fleet, settings.config.step_limit_s)
    if has_terminal():
        _on_hangup(daemon.handle_exit)
    hosted.start()
    return daemon


def _set_up_logging(level: LogLevel) -> None:
    faulthandler.enable(file=2)  # a model file that is cut while it is read ends the process without an exception
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    logging.getLogger("numba").setLevel(logging.WARNING)  # at debug it tells each step of its compiler


def _stop_at_once_on_signals() -> None:
    """Until the server listens there is nothing to drain."""

    def stop(sig: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + sig)

    for sig in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sig, stop)
    _on_hangup(stop)


def _on_hangup(handler: Callable[[int, FrameType | None], None]) -> None:
    """A terminal that closes ends its daemon in order, unless nohup has said that it should outlive it."""
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, handler)
