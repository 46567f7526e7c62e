"""The difference of two plans of a model: what moves, and what that changes."""

from collections import Counter
from dataclasses import dataclass

from .ledger import device_name
from .plan import Plan, PlanError
from .shape import CPU

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Move:
    """Parts that lie elsewhere. what: "experts", "dense weights", "embedding" or "head"; layers: of which, in order."""

    what: str
    count: int
    before: str
    after: str
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """A quantity that differs."""

    what: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Difference:
    """asked: what was asked for otherwise; moves: what lies elsewhere; changes: what comes of it."""

    asked: tuple[Change, ...]
    moves: tuple[Move, ...]
    changes: tuple[Change, ...]

    @property
    def nothing(self) -> bool:
        return not (self.asked or self.moves or self.changes)


def compare(before: Plan, after: Plan) -> Difference:
    """What differs. Raises PlanError where the plans are of models that cannot be compared."""
    shapes = [[len(layer.experts) for layer in plan.layers] for plan in (before, after)]
    if shapes[0] != shapes[1]:
        raise PlanError(
            f"{before.model} has other layers or experts than {after.model}; name two plans of one model, "
            "or of it in two formats"
        )
    return Difference(_asked(before, after), _moves(before, after), _changes(before, after))


def _asked(before: Plan, after: Plan) -> tuple[Change, ...]:
    pairs = [
        ("model", before.model, after.model),
        ("weights", before.inputs.get("shape", "")[:12], after.inputs.get("shape", "")[:12]),
        ("hardware", before.hardware, after.hardware),
        ("routing trace", before.trace, after.trace),
        ("KV cache", before.kv_kind, after.kv_kind),
        ("context", str(before.context), str(after.context)),
        ("streams", str(before.traffic.streams), str(after.traffic.streams)),
        ("decode after", str(before.traffic.context), str(after.traffic.context)),
    ]
    budgets = [{account.device: account.budget for account in plan.ledger} for plan in (before, after)]
    pairs += [
        (f"budget of {device}", *(f"{own.get(device, 0) / GIB:.2f} GiB" for own in budgets))  # type: ignore[misc]
        for device in dict.fromkeys([*budgets[0], *budgets[1]])
    ]
    return _different(pairs)


def _moves(before: Plan, after: Plan) -> tuple[Move, ...]:
    counts: Counter[tuple[str, int, int]] = Counter()
    layers: dict[tuple[str, int, int], list[int]] = {}
    for number, (old, new) in enumerate(zip(before.layers, after.layers, strict=True)):
        pairs = [("experts", *pair) for pair in zip(old.experts, new.experts, strict=True)]
        for move in [("dense weights", old.dense, new.dense), *pairs]:
            if move[1] != move[2]:
                counts[move] += 1
                layers.setdefault(move, []).append(number)
    moves = [
        Move(what, count, _place(at), _place(to), tuple(sorted(set(layers[what, at, to]))))
        for (what, at, to), count in sorted(counts.items())
    ]
    for what, at, to in (("embedding", before.embed, after.embed), ("head", before.head, after.head)):
        if at != to:
            moves.append(Move(what, 1, _place(at), _place(to), ()))
    return tuple(moves)


def _changes(before: Plan, after: Plan) -> tuple[Change, ...]:
    pairs = [("policy", before.policy, after.policy)]
    for what, name in (("decode", "predicted_decode_tok_s"), ("prefill", "predicted_prefill_tok_s")):
        rates = [getattr(plan, name) for plan in (before, after)]
        pairs.append((what, *(f"{r.value:.1f} tokens/s ({r.low:.1f} to {r.high:.1f})" for r in rates)))  # type: ignore[arg-type]
    accounts = [{account.device: account for account in plan.ledger} for plan in (before, after)]
    for device in dict.fromkeys([*accounts[0], *accounts[1]]):
        terms = [{t.name: t.nbytes for t in own[device].terms} if device in own else {} for own in accounts]
        for name in dict.fromkeys([*terms[0], *terms[1]]):
            sizes = [f"{own.get(name, 0) / GIB:.2f} GiB" for own in terms]
            pairs.append((f"{name} on {device}", sizes[0], sizes[1]))
    return _different(pairs)


def _different(pairs: list[tuple[str, str, str]]) -> tuple[Change, ...]:
    return tuple(Change(*pair) for pair in pairs if pair[1] != pair[2])


def _place(device: int) -> str:
    return "the CPU" if device == CPU else device_name(device)
