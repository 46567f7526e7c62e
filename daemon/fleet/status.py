"""What /admin/status answers: one model in full, and how all are."""

import os
import time
from typing import Any

import psutil

from ... import __version__
from ...cpu_kernels.features import host_tier
from ..events import EventLog
from .fleet import Fleet
from .host import Hosted


def status_of(fleet: Fleet[Hosted[Any]], model: str | None, since: float, events: EventLog) -> dict[str, Any]:
    """model: which is shown in full; None is the default, or the first one that is loaded. since: when the daemon
    began, by the monotonic clock. Sizes in bytes, times in seconds; `models` has a row of `Fleet.show` for each."""
    loaded = dict(fleet.loaded())
    name = model or (fleet.default if fleet.default in loaded else next(iter(loaded), fleet.default))
    shown = loaded[name].assembly.status() if name in loaded else _unloaded(name, since, events)
    shown["model"] = {**shown["model"], "id": name}
    rows = fleet.show()
    for row in rows:
        hosted = loaded.get(row["id"])
        row["tokens_per_second"] = hosted.assembly.throughput.rate if hosted else 0.0
    return {**shown, "uptime_s": time.monotonic() - since, "models": rows}


def _unloaded(name: str, since: float, events: EventLog) -> dict[str, Any]:
    """The same of a model that is not loaded."""
    return {
        "state": "ready",
        "reason": "the model is not loaded; the next request for it loads it",
        "version": __version__,
        "pid": os.getpid(),
        "uptime_s": time.monotonic() - since,
        "load_s": 0.0,
        "model": {"id": name, "path": "", "architecture": "", "context": 0, "formats": {}},
        "threads": 0,
        "affinity": "none",
        "memory_nodes": 1,
        "kernels": host_tier().name,
        "self_test": {"kernels": 0, "replaced": {}},
        "memory": {"resident_bytes": psutil.Process().memory_info().rss, "weight_bytes": 0, "kv_bytes": 0},
        "accelerators": None,
        "speed": {"predicted": None, "measured": {"decode_tok_s": None, "prefill_tok_s": None}},
        "pack_cache": None,
        "kv": {"format": "none", "blocks": 0, "free_blocks": 0, "prefix_blocks": 0, "usage": 0.0},
        "requests": {"running": 0, "waiting": 0},
        "tokens_per_second": 0.0,
        "generated_tokens": 0,
        "prefix_cache": {"queried": 0, "hit": 0},
        "preemptions": 0,
        "audit_failures": 0,
        "events": {
            "counts": events.counts(),
            "recent": [{"name": each.name, "detail": each.detail, "at": each.at} for each in events.recent()],
        },
    }
