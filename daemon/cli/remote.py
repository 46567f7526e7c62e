"""How the other commands find and ask a running daemon."""

from pathlib import Path
from typing import Any, NoReturn

import httpx

from ..api_keys import first_key
from ..config import Config, ConfigError
from ..state import live_daemons
from .output import ExitCode, fail
from .program import program


def connect(url: str | None, port: int | None, api_key_file: Path | None) -> httpx.Client:
    """A client of the daemon at `url` or `port`, else of the only one that runs. Exits if the choice is not clear."""
    headers = {}
    if api_key_file is not None:
        try:
            headers["authorization"] = f"Bearer {first_key(api_key_file)}"
        except ConfigError as error:
            fail(str(error), ExitCode.USAGE)
    # No proxy: the daemon is most often on this machine. A long prompt takes its time, so reads have no limit.
    timeout = httpx.Timeout(10.0, read=None)
    return httpx.Client(base_url=_choose_url(url, port), headers=headers, timeout=timeout, trust_env=False)


def _choose_url(url: str | None, port: int | None) -> str:
    if url is not None and port is not None:
        fail("--url and --port are both given; leave one out", ExitCode.USAGE)
    if url is not None:
        return normal_url(url)
    daemons = [daemon for daemon in live_daemons() if port in (None, daemon.port)]
    if len(daemons) > 1:
        fail(f"{len(daemons)} daemons run; choose one: --url {' or '.join(d.url for d in daemons)}", ExitCode.USAGE)
    return daemons[0].url if daemons else f"http://{Config().host}:{port or Config().port}"


def normal_url(text: str) -> str:
    """The daemon's address out of what people write: the scheme may lack, /v1 may follow. Exits if it is none."""
    try:
        url = httpx.URL(text if "://" in text else f"http://{text}")
        known = url.scheme in ("http", "https") and url.host and 0 < (url.port or 80) < 1 << 16
        if not known or any(map(str.isspace, text)):
            raise httpx.InvalidURL(f"{text!r} is not like http://127.0.0.1:8440")
    except httpx.InvalidURL as error:
        fail(f"--url is no address: {error}", ExitCode.USAGE)
    return str(url).rstrip("/").removesuffix("/v1")


def get(client: httpx.Client, path: str) -> Any:
    """The JSON at `path`. Exits with a plain word if no daemon answers or it refuses."""
    try:
        response = client.get(path, timeout=10.0)
        check(client, response)
        return response.json()
    except httpx.HTTPError as error:
        no_daemon(client, error)
    except ValueError:
        no_isotherm(client)


def get_model(client: httpx.Client) -> str:
    """The name of the model that is served. Exits as `get` does."""
    try:
        return str(get(client, "/v1/models")["data"][0]["id"])
    except (LookupError, TypeError):
        no_isotherm(client)


def check(client: httpx.Client, response: httpx.Response) -> None:
    """Exit with the daemon's own words if it did not answer 200."""
    if response.status_code == 200:
        return
    if response.status_code == 503:
        _fail_while_loading(_address(client))
    error = error_fields(response)
    if error is None:
        no_isotherm(client)
    if response.status_code != 401:
        fail(f"the daemon refuses: {error['message']}", ExitCode.FAILURE)
    if "authorization" in client.headers:
        fail("the daemon does not know the first key of --api-key-file", ExitCode.USAGE)
    fail(f"the daemon refuses: {error['message']}; name the key by --api-key-file", ExitCode.USAGE)


def error_fields(response: httpx.Response) -> dict[str, Any] | None:
    """An error in OpenAI's shape, which has a message; None if the response holds none."""
    response.read()
    try:
        error = response.json()["error"]
        return {**error, "message": str(error["message"])}
    except (ValueError, LookupError, TypeError):
        return None


def no_isotherm(client: httpx.Client) -> NoReturn:
    """Exit because another kind of server answers."""
    fail(f"what answers at {_address(client)} is not an Isotherm daemon", ExitCode.NO_DAEMON)


def no_daemon(client: httpx.Client, error: httpx.HTTPError) -> NoReturn:
    """Exit because nothing answers, or nothing yet."""
    url = _address(client)
    _fail_while_loading(url)
    fail(
        f"no daemon answers at {url} ({error or type(error).__name__}); start one by: {program()} serve --background",
        ExitCode.NO_DAEMON,
    )


def _fail_while_loading(url: str) -> None:
    for daemon in live_daemons():
        if daemon.url == url and daemon.phase == "loading":
            share = f" ({daemon.stage} {daemon.done / daemon.total:.0%})" if daemon.total else ""
            fail(f"the daemon at {url} is still loading {daemon.model}{share}", ExitCode.NO_DAEMON)


def _address(client: httpx.Client) -> str:
    return str(client.base_url).rstrip("/")
