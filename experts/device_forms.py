"""Which forms of activations the dense parts of layers read on an accelerator."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..cpu_kernels.layout import KINDS
from ..cpu_kernels.layout import Record as Form
from .pack import PackedMatrix, PackedWeights
from .spec import ModelSpec

_NAMES = ("q", "k", "v", "gate", "up", "router", "shared_gate", "shared.gate", "shared.up")  # what reads a norm


@dataclass(slots=True)
class DeviceForms:
    """normed: of what is normed; mixed: of what attention gives; inner: of inner activations, by branch."""

    normed: set[Form] = field(default_factory=set)
    mixed: set[Form] = field(default_factory=set)
    inner: dict[str, set[Form]] = field(default_factory=dict)

    @classmethod
    def of(cls, spec: ModelSpec, weights: PackedWeights, layers: Iterable[int], *, head: bool) -> "DeviceForms":
        """Of layers, and of the head."""
        forms = cls()
        if head:
            forms.normed |= records_of((weights.matrices["head"],))
        for layer in layers:
            forms._add(spec, weights, layer)
        return forms

    def _add(self, spec: ModelSpec, weights: PackedWeights, layer: int) -> None:
        here, is_moe = f"layers.{layer}.", spec.moe_layers[layer]
        readers = [weights.matrices[here + name] for name in _NAMES if here + name in weights.matrices]
        readers += [weights.banks[here + f"experts.{part}"][0] for part in ("gate", "up") if is_moe]
        self.normed |= records_of(readers)
        if is_moe:
            self.normed.add("plain")  # the host may want it
        self.mixed |= records_of((weights.matrices[here + "o"],))
        downs = {"": here + "down", "shared": here + "shared.down"}
        for branch, role in downs.items():
            if role in weights.matrices:
                self.inner.setdefault(branch, set()).update(records_of((weights.matrices[role],)))
        if is_moe:
            self.inner.setdefault("experts", set()).update(records_of(weights.banks[here + "experts.down"][:1]))


def records_of(matrices: Iterable[PackedMatrix]) -> set[Form]:
    """The records that matrices read."""
    return {KINDS[matrix.kind].record for matrix in matrices}
