"""Looks at what serves, or would: the port, and a running daemon's promises."""

import re
from collections.abc import Iterator

import httpx
import psutil

from ...placement.plan import PlanError
from ...placement.plan_file import load_plan
from ..cli.address import BindError, bind
from ..state import read_state
from .finding import Finding, advice, fault, good
from .patient import Patient

_METRICS_AGAIN = "name its key by --api-key-file if it asks for one (401)"


def port(patient: Patient) -> Iterator[Finding]:
    """Whether a daemon could listen there, or does."""
    state = read_state(patient.port)
    if state is not None:
        yield good("port", f"{patient.port} is {state.model}'s, process {state.pid}")
        return
    try:
        bind(patient.host, patient.port).close()
    except BindError as error:
        who = _listener(patient.port)
        yield fault("port", f"{error}{f': {who} does' if who else ''}", "end that program, or use another --port")
        return
    yield good("port", f"{patient.host} port {patient.port} is free")


def _listener(number: int) -> str:
    """The program that listens on a port, as far as the system tells this user."""
    try:
        found = [each for each in psutil.net_connections("tcp") if each.laddr and each.laddr.port == number]
        pid = next((each.pid for each in found if each.status == psutil.CONN_LISTEN and each.pid), None)
        return "" if pid is None else f"{psutil.Process(pid).name()} ({pid})"
    except (psutil.Error, OSError):
        return ""


def promise(patient: Patient) -> Iterator[Finding]:
    """A plan's speed against what the running daemon measured of late."""
    state = read_state(patient.port)
    if patient.plan is None or state is None:
        return
    try:
        promised = load_plan(patient.plan).predicted_decode_tok_s
        measured = measured_rate(state.url, patient.api_key)
    except httpx.HTTPError as error:
        yield fault("promise", f"the daemon's metrics cannot be read: {error}", _METRICS_AGAIN)
        return
    except (PlanError, OSError):
        return  # told of by others
    if measured is None:
        yield advice("promise", "the daemon has not decoded yet", "ask it something, and come again")
    elif measured < promised.low:
        yield fault(
            "promise",
            f"decode runs at {measured:.1f} tokens/s; the plan said {promised.low:.1f} to {promised.high:.1f}",
            "see bandwidth and threads above; then isotherm calibrate, and make the plan anew",
        )
    else:
        yield good("promise", f"decode runs at {measured:.1f} tokens/s, the plan said at least {promised.low:.1f}")


def measured_rate(url: str, api_key: str | None = None) -> float | None:
    """Tokens a second of recent steps that only decoded, by a daemon's metrics. Raises httpx.HTTPError."""
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    response = httpx.get(f"{url}/metrics", headers=headers, timeout=5.0, trust_env=False)
    if response.status_code != 200:
        raise httpx.HTTPError(f"status {response.status_code}")
    rate = re.search(r'^isotherm_measured_tokens_per_second\{phase="decode"\} (\S+)', response.text, re.M)
    return None if rate is None else float(rate[1])


LOOKS = (port, promise)
