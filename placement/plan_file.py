"""Plans as JSON files: written in one step, and read without trust.

A list of experts is a text of numbers and ranges, such as "0-3,7". `digest` is the sha256 of all other keys, so a plan
that was changed by hand is found out: what it predicts would not be of what it says.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .files import replacing
from .ledger import Account, Term
from .placed import Traffic
from .plan import SCHEMA_VERSION, LayerPlan, Plan, PlanError, Rate, digest
from .plan_keys import REMEDY, Keys
from .planner import Considered
from .shape import CPU

KIND = "isotherm plan"
MAX_BYTES = 32 << 20
MAX_LAYERS, MAX_EXPERTS, MAX_DEVICES, MAX_TOKENS = 1024, 4096, 64, 1 << 40
_CPU = "cpu"


def to_json(plan: Plan) -> dict[str, Any]:
    """The content of a plan's file."""
    content: dict[str, Any] = {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "model": plan.model,
        "fingerprint": plan.fingerprint,
        "inputs": dict(plan.inputs),
        "hardware": plan.hardware,
        "trace": plan.trace,
        "kv_kind": plan.kv_kind,
        "context": plan.context,
        "traffic": {name: getattr(plan.traffic, name) for name in ("streams", "context", "prompt", "chunk")},
        "policy": plan.policy,
        "reasons": list(plan.reasons),
        "predicted_decode_tok_s": _rate(plan.predicted_decode_tok_s),
        "predicted_prefill_tok_s": _rate(plan.predicted_prefill_tok_s),
        "step_ms": plan.step_ms,
        "parts_ms": dict(plan.parts_ms),
        "cpu_gb": plan.cpu_gb,
        "bound_tok_s": plan.bound_tok_s,
        "shadow_price_ms_per_gib": dict(plan.shadow_price_ms_per_gib),
        "value_ms_by_gib": {device: list(values) for device, values in plan.value_ms_by_gib.items()},
        "considered": [{"policy": item.policy, "step_ms": item.step_ms, "note": item.note} for item in plan.considered],
        "ledger": {account.device: _account(account) for account in plan.ledger},
        "embed": _device(plan.embed),
        "head": _device(plan.head),
        "layers": [_layer(layer) for layer in plan.layers],
    }
    return content | {"digest": digest(content)}


def save_plan(plan: Plan, file: Path) -> None:
    """Write a plan so that at any time the file is the old one or all of the new one. Raises PlanError."""
    text = json.dumps(to_json(plan), indent=1) + "\n"
    try:
        with replacing(file) as out:
            out.write(text.encode())
    except OSError as error:
        raise PlanError(f"{file}: cannot be written ({error.strerror}); name another file by --out") from error


def load_plan(file: Path) -> Plan:
    """Read and check a plan. Raises PlanError, naming the file, the key and the remedy."""
    try:
        with file.open("rb") as plan:
            text = plan.read(MAX_BYTES + 1)  # a device has no size, and no end
    except OSError as error:
        raise PlanError(f"{file}: cannot be read ({error.strerror}); check the path") from error
    if len(text) > MAX_BYTES:
        raise PlanError(f"{file}: has more than {MAX_BYTES >> 20} MiB, as no plan has; name a plan's file")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{file}: is not valid JSON ({error}); {REMEDY}") from error
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise PlanError(f"{file}: key 'kind' is not {KIND!r}, so it is no plan; name a file that isotherm plan wrote")
    return from_json(content, str(file))


def from_json(content: dict[str, Any], file: str) -> Plan:
    """A plan of a file's content. Raises PlanError."""
    keys = Keys(file, content)
    version = keys.integer("schema_version", 0)
    if version != SCHEMA_VERSION:
        older = version < SCHEMA_VERSION
        remedy = REMEDY if older else "update isotherm"
        raise PlanError(
            f"{file}: key 'schema_version' is {version}, {SCHEMA_VERSION} is read here: it was written by "
            f"{'an older' if older else 'a newer'} isotherm; {remedy}"
        )
    plan = _read(keys)
    if keys.text("digest") != digest({key: value for key, value in content.items() if key != "digest"}):
        raise keys.broken("digest", "does not match, so the file was changed after it was written")
    return plan


def _read(keys: Keys) -> Plan:
    ledger = keys.section("ledger")
    devices = len(ledger.values) - 1
    traffic = keys.section("traffic")
    values = keys.section("value_ms_by_gib")
    return Plan(
        model=keys.text("model"),
        fingerprint=keys.text("fingerprint"),
        inputs=keys.named_texts("inputs"),
        hardware=keys.text("hardware"),
        trace=keys.text("trace"),
        kv_kind=keys.text("kv_kind"),
        context=keys.integer("context", 1, MAX_TOKENS),
        traffic=Traffic(
            streams=traffic.integer("streams", 1, MAX_TOKENS),
            context=traffic.integer("context", 0, MAX_TOKENS),
            prompt=traffic.integer("prompt", 1, MAX_TOKENS),
            chunk=traffic.integer("chunk", 1, MAX_TOKENS),
        ),
        policy=keys.text("policy"),
        reasons=keys.texts("reasons"),
        layers=tuple(_read_layer(layer, devices) for layer in keys.sections("layers", MAX_LAYERS)),
        embed=_read_device(keys, "embed", devices),
        head=_read_device(keys, "head", devices),
        ledger=tuple(_read_account(ledger, device) for device in ledger.values),
        predicted_decode_tok_s=_read_rate(keys.section("predicted_decode_tok_s")),
        predicted_prefill_tok_s=_read_rate(keys.section("predicted_prefill_tok_s")),
        step_ms=keys.number("step_ms"),
        parts_ms=keys.named_numbers("parts_ms"),
        cpu_gb=keys.number("cpu_gb"),
        bound_tok_s=keys.number("bound_tok_s"),
        shadow_price_ms_per_gib=keys.named_numbers("shadow_price_ms_per_gib"),
        value_ms_by_gib={device: values.numbers(device) for device in values.values},
        considered=tuple(
            Considered(policy=item.text("policy"), step_ms=_read_ms(item), note=item.text("note"))
            for item in keys.sections("considered")
        ),
    )


def _read_ms(keys: Keys) -> float | None:
    return None if keys.get("step_ms") is None else keys.number("step_ms")


def _rate(rate: Rate) -> dict[str, float]:
    return {"value": rate.value, "low": rate.low, "high": rate.high}


def _read_rate(keys: Keys) -> Rate:
    value, low, high = (keys.number(name) for name in ("value", "low", "high"))
    if not low <= value <= high:
        raise keys.broken("value", f"is {value:g}, not within {low:g} to {high:g}")
    return Rate(value, low, high)


def _account(account: Account) -> dict[str, Any]:
    terms = {term.name: term.nbytes for term in account.terms}
    return {"budget_bytes": account.budget, "total_bytes": account.total, "free_bytes": account.free, "terms": terms}


def _read_account(ledger: Keys, device: str) -> Account:
    keys = ledger.section(device)
    terms = keys.section("terms")
    account = Account(
        device=device,
        budget=keys.integer("budget_bytes"),
        terms=tuple(Term(name, terms.integer(name)) for name in terms.values),
    )
    if keys.integer("total_bytes") != account.total:
        raise keys.broken("total_bytes", f"is not the sum of the terms, {account.total}")
    if account.free < 0:
        raise keys.broken("total_bytes", f"is {account.total}, more than the budget of {account.budget}")
    return account


def _device(device: int) -> str:
    return _CPU if device == CPU else f"gpu{device}"


def _read_device(keys: Keys, key: str, devices: int) -> int:
    return _device_number(keys, key, keys.text(key), devices)


def _device_number(keys: Keys, key: str, name: str, devices: int) -> int:
    known = {_device(device): device for device in range(CPU, min(devices, MAX_DEVICES))}
    if name not in known:
        raise keys.broken(key, f"names the device {name[:40]!r}, which the ledger has not ({', '.join(known)})")
    return known[name]


def _layer(layer: LayerPlan) -> dict[str, Any]:
    devices = sorted(set(layer.experts))
    own = {
        _device(device): ranges(expert for expert, at in enumerate(layer.experts) if at == device) for device in devices
    }
    return {"dense": _device(layer.dense), "experts": own, "slots": layer.slots, "from_disk": layer.from_disk}


def _read_layer(keys: Keys, devices: int) -> LayerPlan:
    lists = keys.section("experts")
    placed: dict[int, int] = {}
    for name in lists.values:
        device = _device_number(keys, f"experts.{name}", name, devices)
        for expert in _read_ranges(lists, name):
            if expert in placed:
                raise lists.broken(name, f"names expert {expert} a second time")
            placed[expert] = device
    if placed.keys() != set(range(len(placed))):
        raise keys.broken("experts", f"leaves out experts below {max(placed)}")
    experts = tuple(placed[expert] for expert in range(len(placed)))
    on_cpu = experts.count(CPU)
    return LayerPlan(
        _read_device(keys, "dense", devices),
        experts,
        keys.integer("slots", 0, len(experts) - on_cpu),
        keys.integer("from_disk", 0, on_cpu),
    )


def ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers as text, such as "0-3,7"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _read_ranges(keys: Keys, key: str) -> Iterable[int]:
    # A list of 4096 experts, every other one, is longer than other texts.
    text = keys.get(key)
    if not isinstance(text, str) or len(text) > 6 * MAX_EXPERTS:
        raise keys.broken(key, 'is no list of experts such as "0-3,7"')
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        bounds = (first, last or first)
        if not all(bound.isascii() and bound.isdecimal() and len(bound) <= 5 for bound in bounds):
            raise keys.broken(key, 'is no list of experts such as "0-3,7"')
        low, high = map(int, bounds)
        if low > high or high >= MAX_EXPERTS:
            raise keys.broken(key, f"names experts {part}, not within 0 to {MAX_EXPERTS - 1}")
        yield from range(low, high + 1)
