"""Speed: tokens a second as foretold and as measured, for whoever shows them side by side."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..placement.plan import Plan, Rate
from .status import EngineStats


def speed(stats: EngineStats, plan: Plan | None, accelerators: Mapping[str, Any] | None) -> dict[str, Any]:
    """accelerators: what is told of them, if there are any: they have a clock of their own, and foretell by where
    experts lie now. predicted: None without a plan."""
    if accelerators is not None:
        return {"predicted": accelerators["predicted"], "measured": accelerators["measured"]}
    foretold = plan and predicted_json(plan, plan.predicted_decode_tok_s, plan.predicted_prefill_tok_s)
    return {
        "predicted": foretold,
        "measured": {"decode_tok_s": stats.decode_rate, "prefill_tok_s": stats.prefill_rate},
    }


def predicted_json(plan: Plan, decode: Rate | None, prefill: Rate | None, *, as_planned: bool = True) -> dict[str, Any]:
    """as_planned: the numbers are the plan's; else for where experts lie now, None until they are known."""
    traffic = plan.traffic
    return {
        "as_planned": as_planned,
        "streams": traffic.streams,
        "context": traffic.context,
        "prompt": traffic.prompt,
        "decode_tok_s": None if decode is None else asdict(decode),
        "prefill_tok_s": None if prefill is None else asdict(prefill),
    }
