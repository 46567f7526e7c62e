"""The rows of `isotherm status` about accelerators."""

from collections.abc import Iterator
from typing import Any


def accelerator_rows(data: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and texts, of what /admin/status tells of them."""
    for device in data["devices"]:
        growing = ", more are coming" if device["growing"] else ""
        if device["lost"]:
            yield device["device"], f"{device['name']} has failed and is done without; start the daemon again to use it"
            continue
        yield (
            device["device"],
            f"{device['name']}, {_gib(device['used_bytes'])} of {_gib(device['limit_bytes'])} in use, "
            f"{_count(device['experts'], 'expert')} in {_gib(device['expert_bytes'])}{growing}{_kv(device)}",
        )
    given_back = f", {_gib(given)} given back to the system" if (given := data["ram"]["given_back_bytes"]) else ""
    yield "experts", f"{data['ram']['experts']} in RAM{given_back}; {_hits(data)}"
    yield "prediction", f"decode {_compared(data, 'decode')}; prefill {_compared(data, 'prefill')}{_conditions(data)}"


def _kv(device: dict[str, Any]) -> str:
    """What went to RAM and came back, if there was not room for all."""
    if not device["kv_offloaded"]:
        return ""
    counts = device["kv_offloaded"], device["kv_brought_back"]
    gone, back = (f"{count} ({_gib(count * device['kv_block_bytes'])})" for count in counts)
    return f"; of {device['kv_blocks']} KV blocks {gone} went to RAM and {back} came back"


def _hits(data: dict[str, Any]) -> str:
    if data["hit_rate"] is None:
        return "none was chosen yet"
    total = data["ram"]["hits"] + sum(device["hits"] for device in data["devices"])
    shares = ", ".join(f"{device['hits'] / total:.1%} on {device['device']}" for device in data["devices"])
    return f"{data['hit_rate']:.1%} of the choices found theirs on an accelerator: {shares}"


def _compared(data: dict[str, Any], phase: str) -> str:
    predicted, measured = data["predicted"][f"{phase}_tok_s"], data["measured"][f"{phase}_tok_s"]
    foretold = "not known" if predicted is None else f"{predicted['value']:.1f} tokens/s"
    return f"{foretold}, measured {'nothing yet' if measured is None else f'{measured:.1f}'}"


def _conditions(data: dict[str, Any]) -> str:
    predicted = data["predicted"]
    where = "as planned" if predicted["as_planned"] else "where experts lie now"
    return (
        f" ({where}, for {_count(predicted['streams'], 'stream')} after {predicted['context']} tokens and a prompt of "
        f"{predicted['prompt']})"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
