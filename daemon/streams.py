"""Which experts of the CPU are brought to accelerators for the time of a large step, by a plan and what it rests on."""

from ..experts.acceleration import Stream
from ..placement.cost import CostModel
from ..placement.ledger import device_name
from ..placement.plan import Plan

STAGING = "prefill staging"  # the term of a ledger


def staged_bytes(plan: Plan, device: int) -> int:
    """What the plan leaves for it on an accelerator."""
    return sum(account.of(STAGING) for account in plan.ledger if account.device == device_name(device))


def streams_of(plan: Plan, cost: CostModel, devices: int) -> dict[int, Stream]:
    """By accelerator, where there is room and steps may be large enough for it to pay."""
    found: dict[int, Stream] = {}
    largest = max((layer.expert_bytes for layer in cost.shape.layers), default=0)
    most = max((layer.num_experts for layer in cost.shape.layers), default=0)
    for device in range(devices):
        slots = min(staged_bytes(plan, device) // (2 * largest), most) if largest else 0
        if not slots:
            continue
        pays = {layer: cost.break_even(layer, device) for layer in cost.shape.moe_layers}
        above = {layer: tokens for layer, tokens in pays.items() if tokens < plan.traffic.chunk}
        if above:
            found[device] = Stream(above, slots)
    return found
