"""`isotherm service`: the daemon as a service of systemd, of the machine or of this user."""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from ... import __version__
from ..library.resolve import model_path
from .output import NO_RESTART, ExitCode, err, fail, out, refusals
from .program import program

if TYPE_CHECKING:
    from ..service.condition import Condition
    from ..service.installation import Installation
    from ..service.unit import Scope, ServiceUnit

_CONFIG = Path("/etc/isotherm/config.toml")
service = typer.Typer(no_args_is_help=True, help="Have systemd run the daemon: install, status, uninstall.")

User = Annotated[bool, typer.Option("--user", help="A service of this user, which needs no root.")]
Force = Annotated[bool, typer.Option("--force", help="Even if the unit was changed by hand.")]


@service.command()
def install(
    serve_arguments: Annotated[
        list[str] | None, typer.Argument(help="What serve is to be told, after --.", metavar="[-- MODEL OPTIONS]")
    ] = None,
    user: User = False,
    run_as: Annotated[
        str | None,
        typer.Option(help="A user of the system.", metavar="NAME", show_default="one of its own, made up by systemd"),
    ] = None,
    read: Annotated[
        list[Path] | None,
        typer.Option(help="A folder in a home that the service may read, such as one of models; again for each other."),
    ] = None,
    socket: Annotated[
        str | None,
        typer.Option(
            help="Have systemd listen there, and start the daemon when somebody connects: 127.0.0.1:8440, or a port.",
            metavar="ADDRESS",
            show_default="none",
        ),
    ] = None,
    no_start: Annotated[bool, typer.Option("--no-start", help="Start it with the machine, but not now.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the units.")] = False,
    force: Force = False,
) -> None:
    """Install the daemon as a service, or bring an installed one up to date.

    Example: sudo isotherm service install -- model.gguf --threads 8
    """
    from ..service.unit import SERVICE, SOCKET, socket_text

    arguments = serve_arguments or []
    with _explained():
        unit = _unit(_Wishes(arguments, "user" if user else "system", run_as, tuple(read or ()), socket is not None))
        texts = {SERVICE: unit.text()} | ({} if socket is None else {SOCKET: socket_text(_address(socket))})
        if dry_run:
            for name, text in texts.items():
                out.out(f"# {name}\n{text}", highlight=False)
            return
        _install(_installation(user), unit, texts, start=not no_start, force=force)


@service.command()
def uninstall(
    user: User = False,
    purge: Annotated[
        bool, typer.Option("--purge", help="Remove what it has kept, too: packed weights, kernels, traces.")
    ] = False,
    force: Force = False,
) -> None:
    """Stop the service, and remove what install wrote.

    Example: sudo isotherm service uninstall --purge
    """
    with _explained():
        installation = _installation(user)
        for path in installation.uninstall(purge=purge, force=force):
            _say(f"removed {path}")
        for path in installation.kept():
            _say(f"kept {path}, which the service wrote; --purge removes it")
        for path in installation.left():
            _say(f"left {path}, which is not install's work, or no longer")


@service.command("status")
def status_of_service(
    user: User = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as one JSON object.")] = False,
) -> None:
    """Show whether the service is installed and runs, and how it last ended. Exits with 6 if it does not run.

    Example: isotherm service status --json
    """
    from ..service.condition import condition
    from ..service.systemctl import Systemctl
    from ..service.unit import SERVICE

    with _explained():
        installation = _installation(user)
        found = condition(Systemctl(installation.scope), {code: code.cause for code in ExitCode})
        file = installation.file(SERVICE)
        written_by, verdict = file.version(), file.verdict()
    if as_json:
        versions = {"unit": str(file.path), "unit_version": written_by, "version": __version__, "unit_is": verdict}
        out.out(json.dumps(asdict(found) | versions, indent=2), highlight=False)
    else:
        for name, value in _rows(found, str(file.path), written_by, verdict):
            out.out(f"{name:10}  {value}", highlight=False)
    if not found.active:
        raise typer.Exit(ExitCode.NO_DAEMON)


def _rows(found: "Condition", path: str, written_by: str | None, verdict: str) -> Iterator[tuple[str, str]]:
    if not found.installed:
        yield "service", f"not installed; {program()} service install does it"
        return
    hint = "" if written_by in (None, __version__) else f"; this is {__version__}, install again to bring it up to date"
    by = f"by version {written_by}{hint}" if written_by else "not by isotherm service install"
    yield "unit", f"{path}, {by}{', changed by hand since' if verdict == 'changed' else ''}"
    process = f", process {found.pid}" if found.pid else ""
    yield "state", f"{found.state}{f' since {found.since}' if found.since else ''}{process}"
    if found.words:
        yield "says", found.words
    yield "at boot", "starts" if found.at_boot else "does not start"
    yield "restarts", str(found.restarts)
    forgotten = "before the restart; systemd forgets it, the journal does not"
    yield "last exit", found.last_exit or (forgotten if found.restarts else "none")


@dataclass(frozen=True, slots=True)
class _Wishes:
    """What `install` was told. arguments: of serve."""

    arguments: Sequence[str]
    scope: "Scope"
    run_as: str | None
    read: tuple[Path, ...]
    socket: bool


def _unit(wishes: _Wishes) -> "ServiceUnit":
    """Raises ServiceError for what no service could read."""
    from ..service import reach
    from ..service.systemctl import ServiceError
    from ..service.unit import ServiceUnit

    arguments, models = _serve_line(wishes.arguments, wishes.scope)
    for folder in wishes.read:
        if not folder.is_dir():
            raise ServiceError(f"--read {folder} is no folder")
    needed = [*reach.needs(models), *(folder.absolute() for folder in wishes.read)]
    run_as = wishes.run_as
    if wishes.scope == "system" and run_as is None:
        run_as = reach.user_for([*needed, *models])
        if run_as is not None:
            err.print(f"not all may read {needed[0]}, so the service runs as {run_as}", highlight=False, markup=False)
    return ServiceUnit(
        scope=wishes.scope,
        command=(*reach.program(), "serve", *arguments),
        no_restart={code.value: code.cause for code in NO_RESTART},
        run_as=run_as,
        readable=reach.hidden(needed),
        socket=wishes.socket,
    )


def _serve_line(arguments: Sequence[str], scope: "Scope") -> tuple[list[str], list[Path]]:
    """Arguments of serve with whole paths, for a service starts in no folder of ours; and the models to be served,
    which may be named by the configuration file that it will find."""
    from ..settings.settings import Told, gather
    from .serve import serve
    from .serve_options import given_flags

    only_serve = typer.Typer(add_completion=False)
    only_serve.command()(serve)
    ctx = typer.main.get_command(only_serve).make_context("serve", list(arguments))
    if ctx.params["background"]:
        fail("--background is not for a service: systemd has it in the background anyway", ExitCode.USAGE)
    models, flags = tuple(ctx.params["models"] or ()), given_flags(cast(typer.Context, ctx))
    told = Told(flags=flags, models=models, file=ctx.params["config"])
    environ = {"CONFIGURATION_DIRECTORY": str(_CONFIG.parent)} if scope == "system" else dict(os.environ)
    with refusals():
        served = [config.model for config in gather(told, environ).models.values() if config.model is not None]
    for model in served:
        if not model.exists():
            fail(f"there is no model {model}; name a file, a folder or a pulled one", ExitCode.MODEL)
    paths = [path for path in _flat(ctx.params.values()) if isinstance(path, Path) and str(path) != "-"]
    whole = {str(path): str(path.absolute()) for path in paths if path not in models}
    found = {str(path): model_path(path) for path in models}
    whole |= {name: str(path.absolute()) for name, path in found.items() if path.exists()}  # else a name in the file
    return [_with_whole_path(argument, whole) for argument in arguments], [model.absolute() for model in served]


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        yield from value if isinstance(value, list | tuple) else (value,)


def _with_whole_path(argument: str, whole: dict[str, str]) -> str:
    option, equals, value = argument.partition("=")
    if equals and option.startswith("--") and value in whole:
        return f"{option}={whole[value]}"
    return whole.get(argument, argument)


def _address(text: str) -> str:
    """As ListenStream= takes it."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 1 << 16 or any(each.isspace() for each in host):
        fail(f"--socket is {text!r}; name an address and a port, such as 127.0.0.1:8440, or a port", ExitCode.USAGE)
    return text


def _install(
    installation: "Installation", unit: "ServiceUnit", texts: dict[str, str], *, start: bool, force: bool
) -> None:
    from ..service.installation import wait_until_active
    from ..service.systemctl import Systemctl
    from ..settings.sample import sample

    changed = installation.install(texts, sample(), start=start, force=force)
    for path in changed:
        _say(f"wrote {path}")
    if not changed:
        _say("the units are as they were")
    if installation.scope == "user" and not _lingers():
        _say("it ends with your last login, unless: sudo loginctl enable-linger " + os.environ.get("USER", "$USER"))
    if unit.socket:
        _say("it starts when somebody connects")
    elif start and not wait_until_active(Systemctl(installation.scope), _say):
        scope = " --user" if installation.scope == "user" else ""
        raise typer.Exit(_tell_failure(scope))


def _tell_failure(scope: str) -> ExitCode:
    log = f"journalctl{scope} --unit isotherm --lines 20"
    fail(f"the service did not start; see {program()} service status{scope}, and: {log}", ExitCode.FAILURE)


def _lingers() -> bool:
    return (Path("/var/lib/systemd/linger") / os.environ.get("USER", "-")).exists()


def _installation(user: bool) -> "Installation":
    from ..service.installation import Installation

    return Installation("user" if user else "system")


@contextmanager
def _explained() -> Iterator[None]:
    from ..service.systemctl import ServiceError

    try:
        yield
    except ServiceError as error:
        fail(str(error), ExitCode.FAILURE)
    except OSError as error:
        fail(f"{error}", ExitCode.FAILURE)


def _say(words: str) -> None:
    out.print(words, markup=False, highlight=False, soft_wrap=True)
