"""Summary: what a model is, in numbers, without reading its weights."""

from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

from ...experts.model import Model, open_model
from ...experts.outline import shape_of
from ...experts.spec import ModelSpec
from ..config import Config, readable
from ..machine import free_memory
from ..memory import GIB, RESERVE, MemoryPlanError, demand_of, plan_blocks

_CONTEXT = 4096


def summary(path: Path) -> dict[str, Any]:
    """By what is told. parameters: all, and those that a token meets. Raises ModelError."""
    model = open_model(path)
    spec, shape = model.spec, shape_of(model, Config().kv_cache)
    context = min(spec.max_context, _CONTEXT)
    demand = demand_of(shape, context)
    needed = shape.nbytes + demand.context_blocks * demand.block_bytes + RESERVE
    total, active = _parameters(model)
    metadata = model.checkpoint.metadata
    return {
        "path": readable(path.resolve()),
        "architecture": spec.architecture,
        "parameters": total,
        "active_parameters": active,
        "layers": spec.num_layers,
        "experts": _experts(spec),
        "context": spec.max_context,
        "vocabulary": spec.vocab_size,
        "formats": dict(Counter(tensor.format for tensor in model.weights.stored_tensors if len(tensor.shape) > 1)),
        "weights_gib": round(shape.nbytes / GIB, 3),
        "kv_bytes_per_token": shape.kv_bytes,
        "memory": f"{needed / GIB:.2f} GiB with a context of {context}; {_room(model, context)}",
        "chat_template": bool(metadata.get("tokenizer.chat_template") or metadata.get("chat_template")),
        "licence": str(metadata.get("general.license") or metadata.get("license") or "not told"),
        "fingerprint": model.checkpoint.fingerprint,
    }


def _experts(spec: ModelSpec) -> str:
    if spec.routing is None:
        return "none"
    shared = ", and a shared one" if spec.shared_intermediate_size else ""
    return f"{spec.routing.num_experts} in {sum(spec.moe_layers)} layers, {spec.routing.top_k} active{shared}"


def _parameters(model: Model) -> tuple[int, int]:
    """All, and those that a token meets: of the experts only the active ones."""
    sizes = {tensor.name: prod(tensor.shape) for tensor in model.weights.stored_tensors}
    total, routing = sum(sizes.values()), model.spec.routing
    if routing is None:
        return total, total
    inner = 3 * model.spec.hidden_size * model.spec.moe_intermediate_size
    idle = sum(model.spec.moe_layers) * (routing.num_experts - routing.top_k) * inner
    return total, total - idle


def _room(model: Model, context: int) -> str:
    try:
        plan_blocks(demand_of(shape_of(model, Config().kv_cache), context), free_memory())
    except MemoryPlanError as error:
        return f"it does not fit here now: {error}"
    return "it fits here now"
