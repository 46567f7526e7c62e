"""`isotherm status`: how a daemon is doing."""

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from .accelerator_rows import accelerator_rows
from .daemon_options import ApiKeyFile, Port, Url
from .fleet_rows import fleet_rows
from .output import ExitCode, out


def status(
    url: Url = None,
    port: Port = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole status as one JSON object.")] = False,
    api_key_file: ApiKeyFile = None,
) -> None:
    """Show the model, memory, load and degradations of a running daemon. Exits with 7 if its engine is not ready.

    Example: isotherm status --url http://127.0.0.1:8440 --json
    """
    from .remote import connect, get, no_isotherm

    with connect(url, port, api_key_file) as client:
        data = get(client, "/admin/status")
        try:
            rows = list(_rows(data, str(client.base_url).rstrip("/")))
        except (LookupError, TypeError):
            no_isotherm(client)
    if as_json:
        out.out(json.dumps(data, indent=2), highlight=False)
    else:
        _show(rows)
    if data["state"] != "ready":
        raise typer.Exit(ExitCode.ENGINE)


def _show(rows: Sequence[tuple[str, str]]) -> None:
    if not out.is_terminal:  # whoever reads a pipe wants whole lines
        for name, value in rows:
            out.out(f"{name:12}  {value}", highlight=False)
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(name, style="bold"), Text(value))
    out.print(table, highlight=False)


def _rows(data: dict[str, Any], url: str) -> Iterator[tuple[str, str]]:
    model, memory, kv, requests = data["model"], data["memory"], data["kv"], data["requests"]
    reason = f" ({data['reason']})" if data["reason"] else ""
    yield "health", f"{data['state']}{reason}, up for {_duration(data['uptime_s'])} at {url}, process {data['pid']}"
    yield "dashboard", f"{url}/ui"
    yield "model", f"{model['id']} ({model['architecture']}), context {model['context']} tokens"
    yield "file", model["path"]
    yield from fleet_rows(data.get("models", ()))
    for name, row in model["formats"].items():
        note = "" if row["exact"] else " (re-encoded, not bit-exact)"
        yield "weights", f"{_count(row['tensors'], 'tensor')} in {name}, run as {row['packed']}{note}"
    yield "memory", f"{_gib(memory['resident_bytes'])} in use, {_gib(memory['weight_bytes'])} of it weights"
    if data["accelerators"]:
        yield from accelerator_rows(data["accelerators"])
    yield "pack cache", _pack_cache(data["pack_cache"])
    yield (
        "KV cache",
        f"{_gib(memory['kv_bytes'])} reserved, {kv['usage']:.0%} in use, "
        f"{kv['free_blocks']} of {kv['blocks']} blocks free, {kv['format']}{_prefixes(kv)}",
    )
    yield (
        "requests",
        f"{requests['running']} running, {requests['waiting']} waiting, {_count(data['preemptions'], 'preemption')}",
    )
    yield (
        "speed",
        f"{data['tokens_per_second']:.1f} tokens/s in the last seconds, {data['generated_tokens']} since the start",
    )
    yield "kernels", f"{data['kernels']}, {_count(data['threads'], 'thread')}{_seats(data)}"
    test = data["self_test"]
    replaced = "".join(f"; {kernel} runs as {tier}" for kernel, tier in test["replaced"].items())
    yield "self-test", f"passed ({_count(test['kernels'], 'kernel')}{replaced})"
    prefix = data["prefix_cache"]
    share = prefix["hit"] / prefix["queried"] if prefix["queried"] else 0.0
    yield "prefix cache", f"{share:.0%} of {prefix['queried']} prompt tokens were found"
    counts = data["events"]["counts"]
    if not counts:
        yield "degradations", "none"
    latest = {event["name"]: event["detail"] for event in data["events"]["recent"]}
    for name, count in counts.items():
        yield "degradations", f"{name} x {count}: {latest.get(name, '')}"


def _seats(data: dict[str, Any]) -> str:
    """Where the threads sit, if not just anywhere."""
    nodes = f" at {data['memory_nodes']} memory nodes" if data["memory_nodes"] > 1 else ""
    return nodes + (", each bound to a core" if data["affinity"] == "cores" else "")


def _prefixes(kv: dict[str, Any]) -> str:
    """How many blocks there are, if requests may not use them all at once."""
    return f"; prefixes may fill {kv['prefix_blocks']}" if kv["prefix_blocks"] > kv["blocks"] else ""


def _pack_cache(cache: dict[str, Any] | None) -> str:
    if cache is None:
        return "off"
    how = f" {_gib(cache['done_bytes'])} of {_gib(cache['total_bytes'])}" if cache["state"] == "writing" else ""
    return f"{cache['state']}{how}, {cache['path']}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"


def _duration(seconds: float) -> str:
    minutes, whole = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {whole:02} s"
