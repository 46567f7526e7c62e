"""How the other commands find and ask a running daemon."""

from pathlib import Path
from typing import Annotated, Any, NoReturn

import httpx
import typer

from ..config import Config, ConfigError, read_api_keys
from ..state import live_daemons
from .output import ExitCode, fail

Url = Annotated[
    str | None, typer.Option(help="Where the daemon is; by default the one that this user runs.", show_default=False)
]
ApiKeyFile = Annotated[
    Path | None, typer.Option(help="A file whose first key is sent, if the daemon asks for one.", show_default=False)
]


def connect(url: str | None, api_key_file: Path | None) -> httpx.Client:
    """A client of the daemon at `url`, by default the only one that runs. Exits if the choice is not clear."""
    headers = {}
    if api_key_file is not None:
        try:
            headers["authorization"] = f"Bearer {read_api_keys(api_key_file)[0]}"
        except ConfigError as error:
            fail(str(error), ExitCode.USAGE)
    # No proxy: the daemon is most often on this machine. A long prompt takes its time, so reads have no limit.
    timeout = httpx.Timeout(10.0, read=None)
    try:
        return httpx.Client(base_url=url or _default_url(), headers=headers, timeout=timeout, trust_env=False)
    except httpx.InvalidURL as error:
        fail(f"--url is no address: {error}", ExitCode.USAGE)


def _default_url() -> str:
    daemons = live_daemons()
    if len(daemons) > 1:
        fail(f"{len(daemons)} daemons run; choose one: --url {' or '.join(d.url for d in daemons)}", ExitCode.USAGE)
    return daemons[0].url if daemons else f"http://{Config().host}:{Config().port}"


def get(client: httpx.Client, path: str) -> Any:
    """The JSON at `path`. Exits with a plain word if no daemon answers or it refuses."""
    try:
        response = client.get(path, timeout=10.0)
        check(response)
        return response.json()
    except httpx.HTTPError as error:
        no_daemon(client, error)
    except ValueError:
        fail(f"what answers at {client.base_url} is not an Isotherm daemon", ExitCode.NO_DAEMON)


def check(response: httpx.Response) -> None:
    """Exit with the daemon's own words if it did not answer 200."""
    if response.status_code != 200:
        code = ExitCode.USAGE if response.status_code == 401 else ExitCode.FAILURE
        hint = "; name the key by --api-key-file" if response.status_code == 401 else ""
        fail(f"the daemon refuses: {error_message(response)}{hint}", code)


def error_message(response: httpx.Response) -> str:
    """The message of an error in OpenAI's shape, else the status."""
    response.read()
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"status {response.status_code}"


def no_daemon(client: httpx.Client, error: httpx.HTTPError) -> NoReturn:
    """Exit because nothing answers, or nothing yet."""
    url = str(client.base_url).rstrip("/")
    for daemon in live_daemons():
        if daemon.url == url and daemon.phase == "loading":
            share = f" ({daemon.stage} {daemon.done / daemon.total:.0%})" if daemon.total else ""
            fail(f"the daemon at {url} is still loading {daemon.model}{share}", ExitCode.NO_DAEMON)
    fail(
        f"no daemon answers at {url} ({error or type(error).__name__}); start one by: isotherm serve --background",
        ExitCode.NO_DAEMON,
    )
