"""Plan: where everything lies, what it takes, how fast that will be, and why."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any, Self

import numpy as np

from .ledger import Account
from .placed import Placement, Prediction, Traffic
from .planner import Considered
from .shape import ModelShape

SCHEMA_VERSION = 1


class PlanError(ValueError):
    """A plan cannot be used; the message names the file, the key and the remedy."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens a second of all streams; nine in ten measurements should lie in low .. high."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, prediction: Prediction) -> Self:
        return cls(prediction.value, prediction.low, prediction.high)


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """dense: device of the layer's dense part, attention and KV; experts: of each expert. CPU is -1.

    slots: how many of the experts on accelerators make way for recently used ones. from_disk: how many of those on the
    CPU, the coldest, are read from disk.
    """

    dense: int
    experts: tuple[int, ...] = ()
    slots: int = 0
    from_disk: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """fingerprint: of the checkpoint, empty where its weights were not there. inputs: sha256 of shape (its sizes),
    hardware and trace ("" for none). context: tokens that a stream may have; traffic: what the predictions are for.
    layers, embed, head: devices. value_ms_by_gib: by accelerator, ms of a decode step that each GiB on it saves, the
    best first; the last may be a part of one, and counts as a whole one. shadow_price_ms_per_gib: by accelerator, what
    the next would save. parts_ms: where a decode step goes. cpu_gb: weights and KV read from RAM in a step, and
    bound_tok_s: what reading them alone allows.
    """

    model: str
    fingerprint: str
    inputs: Mapping[str, str]
    hardware: str
    trace: str
    kv_kind: str
    context: int
    traffic: Traffic
    policy: str
    reasons: tuple[str, ...]
    layers: tuple[LayerPlan, ...]
    embed: int
    head: int
    ledger: tuple[Account, ...]
    predicted_decode_tok_s: Rate
    predicted_prefill_tok_s: Rate
    step_ms: float
    parts_ms: Mapping[str, float]
    cpu_gb: float
    bound_tok_s: float
    shadow_price_ms_per_gib: Mapping[str, float] = field(default_factory=dict)
    value_ms_by_gib: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    considered: tuple[Considered, ...] = ()

    @property
    def placement(self) -> Placement:
        return Placement(
            dense=tuple(layer.dense for layer in self.layers),
            experts=tuple(np.array(layer.experts, np.int8) for layer in self.layers),
            embed=self.embed,
            head=self.head,
        )

    def check_model(self, shape: ModelShape) -> None:
        """Raises PlanError where the plan is not one of this model; made before the weights were there, it is one of
        all that have its sizes."""
        if not self.fingerprint and self.inputs.get("shape") != digest(shape.sizes):
            raise PlanError(
                f"the plan was made before the weights of {self.model} were there, and those of {shape.name} have "
                "other sizes; make one for them by: isotherm plan MODEL --out FILE"
            )
        if self.fingerprint not in ("", shape.fingerprint):
            raise PlanError(
                f"the plan is of {self.model} ({self.fingerprint[:12]}), not of {shape.name} "
                f"({shape.fingerprint[:12]}); make one for it by: isotherm plan MODEL --out FILE"
            )
        sizes = tuple(layer.num_experts for layer in shape.layers)
        if tuple(len(layer.experts) for layer in self.layers) != sizes:
            raise PlanError(f"the plan has other layers or experts than {shape.name}; make a new one by: isotherm plan")


def digest(value: object) -> str:
    """sha256 of a dataclass of numbers, texts and arrays; "" for None."""
    return "" if value is None else hashlib.sha256(canonical(value)).hexdigest()


def canonical(value: object) -> bytes:
    """The value as JSON, the same for equal values."""
    content = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
    return json.dumps(content, sort_keys=True, separators=(",", ":"), default=_plain).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"dtype": str(value.dtype), "shape": value.shape, "sha256": hashlib.sha256(value.tobytes()).hexdigest()}
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} has no place in a digest")
