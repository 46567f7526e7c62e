"""Rows of `isotherm status` about the models that a daemon knows, where there are several."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def fleet_rows(models: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """models: of /admin/status."""
    for model in models if len(models) > 1 else ():
        yield "models", f"{model['id']}: {', '.join(_facts(model))}"


def _facts(model: Mapping[str, Any]) -> Iterator[str]:
    yield {"cold": "not loaded", "leaving": "being unloaded"}.get(model["state"], model["state"])
    if model["state"] == "failed":
        yield f"{model['reason']}; tried again in {model['retry_s']:.0f} s"
    if model["loading"]:
        loading = model["loading"]
        share = f" {loading['done'] / loading['total']:.0%}" if loading["total"] else ""
        yield f"{loading['stage']}{share}"
    if model["bytes"]:
        yield f"{model['bytes'] / 2**30:.2f} GiB"
    if model["requests"]:
        yield f"{model['requests']} requests"
    if model["waiting"]:
        yield f"{model['waiting']} waiting for it"
    if model["unloads_in_s"] is not None:
        yield f"unloaded in {model['unloads_in_s']:.0f} s"
