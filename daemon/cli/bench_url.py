"""`isotherm bench --url`: measure a server from outside."""

import asyncio
import json
import math
import os
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import typer

from ... import __version__
from ..api_keys import first_key
from ..config import ConfigError, readable
from .bench_options import MOST_STREAMS, check_apart
from .output import ExitCode, err, fail, out, refusals, show
from .progress import progress_bars
from .remote import error_fields, normal_url
from .target import check_target
from .values import numbers, parts

if TYPE_CHECKING:
    from ...experts.progress import Progress
    from ..traffic.figures import Figures, Limits
    from ..traffic.load import Load, LoadOptions
    from ..traffic.workload import Workload

KEY_VARIABLE = "ISOTHERM_API_KEY"
_MOST_TOKENS, _MOST_SECONDS, _MOST_RATE = 1 << 20, 86_400.0, 10_000.0


def make_workload(
    ctx: typer.Context,
    prompt: int,
    gen: int,
    spread: float,
    shared_prefix: int,
    prompts: str | None,
    structured: bool,
    ignore_eos: bool,
    seed: int,
) -> "Workload":
    """What is asked, of a model that is still to be named."""
    from ..prompts import read_prompts
    from ..traffic.workload import Workload

    check_apart(ctx, "prompts", ("prompt", "shared_prefix"))
    check_apart(ctx, "structured", ("ignore_eos",))
    for option, tokens in (("--prompt", prompt), ("--gen", gen)):
        if tokens > _MOST_TOKENS:
            fail(f"{option} is {tokens}; it must be at most {_MOST_TOKENS}", ExitCode.USAGE)
    if shared_prefix >= prompt:
        fail(f"--shared-prefix is {shared_prefix}; it must be less than the {prompt} of --prompt", ExitCode.USAGE)
    with refusals():
        asked = () if prompts is None else tuple(read_prompts(prompts))
    return Workload(
        model="",
        prompt=prompt,
        gen=gen,
        spread=spread,
        shared_prefix=shared_prefix,
        prompts=asked,
        structured=structured,
        ignore_eos=ignore_eos and not structured,
        seed=seed,
    )


def make_load(
    ctx: typer.Context,
    workload: "Workload",
    streams: str,
    rate: str | None,
    requests: int | None,
    duration: float | None,
    warm_up: int,
    timeout: float,
) -> "LoadOptions":
    """How it is sent."""
    from ..traffic.load import LoadOptions

    check_apart(ctx, "rate", ("streams",))
    return LoadOptions(
        workload=workload,
        streams=numbers("--streams", streams, MOST_STREAMS) if rate is None else (),
        rates=() if rate is None else tuple(_rate(part) for part in parts("--rate", rate)),
        requests=requests,
        duration_s=None if duration is None else _positive("--duration", duration, _MOST_SECONDS),
        warm_up=warm_up,
        timeout_s=_positive("--timeout", timeout, _MOST_SECONDS),
    )


def make_limits(ttft_ms: float | None, tpot_ms: float | None) -> "Limits | None":
    """What a good request must keep to; None if nothing was said."""
    from ..traffic.figures import Limits

    if ttft_ms is None and tpot_ms is None:
        return None
    ttft, tpot = (
        None if value is None else _positive(option, value, 1e3 * _MOST_SECONDS) / 1e3
        for option, value in (("--ttft-limit", ttft_ms), ("--tpot-limit", tpot_ms))
    )
    return Limits(ttft_s=ttft, tpot_s=tpot)


def bench_url(
    url: str,
    served_model: str | None,
    api_key_file: Path | None,
    options: "LoadOptions",
    limits: "Limits | None",
    plot: Path | None,
    as_json: bool,
) -> None:
    """Measure and show it. Ctrl-C ends the measurement, and what there is by then is shown."""
    from ..traffic.figures import figures

    check_target("--plot", plot)
    address, headers = normal_url(url), _headers(api_key_file)
    model = served_model or _first_model(address, headers)
    options = replace(options, workload=replace(options.workload, model=model))
    with progress_bars() as report:
        load, interrupted = _run(address, headers, options, report)
    if not load.points:
        fail("stopped before anything was measured", ExitCode.FAILURE)
    found = [figures(point, structured=options.workload.structured, limits=limits) for point in load.points]
    if as_json:
        out.out(json.dumps(_whole(address, options, load, found, interrupted)), highlight=False)
    else:
        _print(address, options, load, found)
    if interrupted:
        err.print("isotherm: stopped; this is what was measured", style="red", highlight=False)
    if plot is not None:
        _draw(plot, load, f"{model} at {_shown(address)}", quiet=as_json)
    if not any(row.requests for row in found):
        raise typer.Exit(ExitCode.FAILURE)


def _run(address: str, headers: dict[str, str], options: "LoadOptions", report: "Progress") -> tuple["Load", bool]:
    """The measurement, and whether it was interrupted."""
    from ..traffic.load import Load, LoadError

    loads: list[Load] = []

    async def run() -> None:
        # A proxy would be measured too.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(
            base_url=address, headers=headers, timeout=None, limits=limits, trust_env=False
        ) as client:
            loads.append(Load(client, options, report))
            await loads[0].run()

    try:
        asyncio.run(run())
    except LoadError as error:
        fail(f"{_shown(address)} does not answer: {error}", ExitCode.FAILURE)
    except KeyboardInterrupt:
        if not loads:
            raise
        return loads[0], True
    return loads[0], False


def _headers(api_key_file: Path | None) -> dict[str, str]:
    headers = {"accept-encoding": "identity"}  # what is compressed comes in other pieces
    try:
        key = first_key(api_key_file) if api_key_file is not None else os.environ.get(KEY_VARIABLE, "").strip()
    except ConfigError as error:
        fail(str(error), ExitCode.USAGE)
    if not (key.isascii() and key.replace(" ", "").isprintable()):
        source = KEY_VARIABLE if api_key_file is None else "--api-key-file"
        fail(f"the key in {source} has characters that no header can hold", ExitCode.USAGE)
    return headers | ({"authorization": f"Bearer {key}"} if key else {})


def _first_model(address: str, headers: dict[str, str]) -> str:
    try:
        response = httpx.get(f"{address}/v1/models", headers=headers, timeout=10.0, trust_env=False)
        if response.status_code != 200:
            told = (error_fields(response) or {"message": f"status {response.status_code}"})["message"]
            key = headers.get("authorization", "").removeprefix("Bearer ")
            told = told.replace(key, "[key]") if key else told
            remedy = f"name the key by --api-key-file, or in {KEY_VARIABLE}"
            remedy = remedy if response.status_code in (401, 403) else "name the model by --served-model"
            fail(f"{_shown(address)} names no model: {told}; {remedy}", ExitCode.FAILURE)
        with suppress(LookupError, TypeError, ValueError):
            return str(response.json()["data"][0]["id"])
    except httpx.HTTPError as error:
        fail(f"no server answers at {_shown(address)} ({error or type(error).__name__})", ExitCode.NO_DAEMON)
    fail(f"{_shown(address)} does not say which models it has; name one by --served-model", ExitCode.FAILURE)


def _shown(address: str) -> str:
    """The address without a name and password that may stand in it."""
    return str(httpx.URL(address).copy_with(username=None, password=None))


def _whole(
    address: str, options: "LoadOptions", load: "Load", found: "list[Figures]", interrupted: bool
) -> dict[str, Any]:
    """Everything that a reader needs to measure it again, and the figures."""
    workload = asdict(options.workload)
    workload["prompts"] = len(options.workload.prompts)
    settings = asdict(options) | {"workload": workload, "sized_by_server": load.scale is not None}
    return {
        "url": _shown(address),
        "client": f"isotherm {__version__}",
        "options": settings,
        "interrupted": interrupted,
        "points": [asdict(row) for row in found],
    }


def _print(address: str, options: "LoadOptions", load: "Load", found: "list[Figures]") -> None:
    from .bench_url_tables import answer_notes, latency_table, load_table, workload_line

    out.print(workload_line(_shown(address), options.workload), highlight=False, markup=False, soft_wrap=True)
    for table in (load_table(found), latency_table(found)):
        out.print()
        show(table)
    notes = answer_notes(found, sized=load.scale is not None or bool(options.workload.prompts))
    for note in notes:
        out.print(note, highlight=False, markup=False, soft_wrap=True)


def _draw(path: Path, load: "Load", title: str, *, quiet: bool) -> None:
    from ..traffic.plot import draw_latencies

    try:
        draw_latencies(path, load.points, title)
    except OSError as error:
        fail(f"{readable(path)} cannot be written: {error.strerror or error}", ExitCode.FAILURE)
    if not quiet:
        out.print(f"Written to {readable(path)}.", highlight=False, markup=False, soft_wrap=True)


def _positive(option: str, value: float, most: float) -> float:
    if not 0 < value <= most:
        fail(f"{option} is {value:g}; it must be more than 0 and at most {most:g}", ExitCode.USAGE)
    return value


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    return _positive("--rate", rate, _MOST_RATE)
