"""`isotherm top`: a daemon at work, live."""

import time
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .daemon_options import ApiKeyFile, Port, Url
from .output import out

_BAR = 30
_SPARKS = " ▁▂▃▄▅▆▇█"
_REMEMBERED = 60
_LAYERS = 24  # shown at most
_EXPERTS = 96


def top(
    url: Url = None,
    port: Port = None,
    api_key_file: ApiKeyFile = None,
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.2, max=60.0)] = 1.0,
    looks: Annotated[int | None, typer.Option(help="End after so many looks.", min=1, show_default="at Ctrl-C")] = None,
) -> None:
    """Watch a daemon: streams, tokens a second, KV cache, queue, hits and which experts are hot.

    Example: isotherm top --port 8440
    """
    from .remote import connect, get, no_isotherm

    rates: deque[float] = deque(maxlen=_REMEMBERED)
    with connect(url, port, api_key_file) as client:
        try:
            with Live(console=out, auto_refresh=False, screen=out.is_terminal) as live:
                for number in count(1) if looks is None else range(1, looks + 1):
                    status, experts = get(client, "/admin/status"), get(client, "/admin/experts")
                    rates.append(float(status["tokens_per_second"]))
                    live.update(_frame(status, experts, rates), refresh=True)
                    if number != looks:
                        time.sleep(every)
        except (LookupError, TypeError, ValueError):
            no_isotherm(client)
        except KeyboardInterrupt:
            return


def _frame(status: Mapping[str, Any], experts: Mapping[str, Any], rates: deque[float]) -> Group:
    table = Table.grid(padding=(0, 2))
    for name, value in _rows(status, rates):
        table.add_row(Text(name, style="bold"), value)
    return Group(table, *_heat(experts))


def _rows(status: Mapping[str, Any], rates: deque[float]) -> Iterator[tuple[str, Text]]:
    model, requests, kv, prefix = status["model"], status["requests"], status["kv"], status["prefix_cache"]
    style = "green" if status["state"] == "ready" else "red"
    yield "model", Text.assemble(f"{model['id']}, ", (str(status["state"]), style), f" {status['reason']}")
    for other in status.get("models", ())[1:]:
        yield "", Text(f"{other['id']}, {other['state']}")
    yield "tokens/s", Text(f"{rates[-1]:8.1f}  {_sparks(rates)}")
    yield "streams", Text(f"{requests['running']:8}  {requests['waiting']} waiting")
    yield "KV cache", _bar(kv["usage"], f"{kv['blocks'] - kv['free_blocks']} of {kv['blocks']} blocks")
    hit = prefix["hit"] / prefix["queried"] if prefix["queried"] else 0.0
    yield "prefix hits", _bar(hit, f"of {prefix['queried']} prompt tokens")
    accelerators = status["accelerators"]
    if accelerators and accelerators["hit_rate"] is not None:
        yield "expert hits", _bar(accelerators["hit_rate"], "of the choices found theirs on an accelerator")
    for device in accelerators["devices"] if accelerators else ():
        used = device["used_bytes"] / max(device["limit_bytes"], 1)
        told = "failed" if device["lost"] else f"{device['experts']} experts{', more are coming' * device['growing']}"
        yield device["device"], _bar(used, told)
    yield "memory", Text(f"{status['memory']['resident_bytes'] / 2**30:8.2f} GiB")
    for name, number in status["events"]["counts"].items():
        yield "event", Text(f"{name} x {number}", style="yellow")


def _bar(share: float, told: str) -> Text:
    full = round(_BAR * min(max(share, 0.0), 1.0))
    return Text.assemble(f"{share:8.0%}  ", ("█" * full, "cyan"), ("·" * (_BAR - full), "dim"), f"  {told}")


def _sparks(rates: deque[float]) -> str:
    most = max(rates) or 1.0
    return "".join(_SPARKS[round(rate / most * (len(_SPARKS) - 1))] for rate in rates)


def _heat(experts: Mapping[str, Any]) -> Iterator[Text]:
    """A line for each layer: how often each expert was chosen of late against its fair share, from none to 3 times."""
    if not experts["layers"]:
        return
    yield Text(
        f"\nexperts of {experts['tokens']:.0f} tokens of late by layer, underlined on accelerators", style="bold"
    )
    rows = zip(experts["layers"], experts["heat"], experts["where"], strict=True)
    for layer, heat, where in list(rows)[:_LAYERS]:
        line = Text(f"{layer:4} ")
        for share, device in list(zip(heat, where, strict=True))[:_EXPERTS]:
            spark = _SPARKS[min(round(share / 3 * (len(_SPARKS) - 1)), len(_SPARKS) - 1)]
            line.append(spark, style="underline cyan" if device else "cyan")
        yield line
    left = max(len(experts["layers"]) - _LAYERS, 0), max(experts["experts"] - _EXPERTS, 0)
    if any(left):
        yield Text(f"     {left[0]} more layers, {left[1]} more experts: see the dashboard", style="dim")
