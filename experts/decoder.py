"""The decoder, written once: which ops a model is made of, in order, against an op set.

An op set (`OpSet`) holds the buffers and knows how an op runs: `cpu_ops.CpuOps` records it into a program for the CPU
team. Buffers by name: x is the residual stream, everything else is scratch between two ops.
`together` says that the next op does not read what this one writes, so that workers need not meet in between.
"""

from typing import Protocol

from .spec import ModelSpec


class OpSet(Protocol):
    """What a device offers. Roles name weights as in `roles`; `layer` numbers the KV cache."""

    def embed(self) -> None:
        """x = embedding of the step's tokens."""

    def norm(self, role: str, readers: tuple[str, ...]) -> None:
        """normed = RMS norm of x by weight `role`, in the forms that the matrices `readers` multiply."""

    def narrow(self) -> None:
        """From here on only the tokens whose logits are wanted matter, but for k and v, which are those of all."""

    def project(self, layer: int) -> None:
        """q, k, v = W normed (+ bias), clamped if the model says so."""

    def rotate_and_store(self, layer: int) -> None:
        """Norm and rotate q and k; write k and v of the step's tokens to the cache."""

    def attend(self, layer: int) -> None:
        """mixed = attention of q over the cache."""

    def output(self, layer: int) -> None:
        """x += W_o mixed (+ bias)."""

    def route(self, layer: int) -> None:
        """Choose experts: ids and weights per token, tokens per expert."""

    def feed_forward(self, layer: int, branch: str, *, together: bool) -> None:
        """inner = silu(gate normed) * (up normed) of a branch: "experts", "shared" or "" (dense)."""

    def project_down(self, layer: int, branch: str) -> None:
        """x += the weighted W_down inner of a branch."""

    def head(self) -> None:
        """logits = W normed."""


def record(spec: ModelSpec, ops: OpSet) -> None:
    """Run or record one step of the whole model."""
    ops.embed()
    for layer in range(spec.num_layers):
        _attention(ops, layer, last=layer == spec.num_layers - 1)
        if spec.moe_layers[layer]:
            _mixture(spec, ops, layer)
        else:
            _dense(ops, layer)
    ops.norm("final_norm", ("head",))
    ops.head()


def _attention(ops: OpSet, layer: int, *, last: bool) -> None:
    here = f"layers.{layer}."
    ops.norm(here + "attn_norm", tuple(here + name for name in ("q", "k", "v")))
    if last:
        ops.narrow()
    ops.project(layer)
    ops.rotate_and_store(layer)
    ops.attend(layer)
    ops.output(layer)


def _dense(ops: OpSet, layer: int) -> None:
    here = f"layers.{layer}."
    ops.norm(here + "ffn_norm", (here + "gate", here + "up"))
    ops.feed_forward(layer, "", together=False)
    ops.project_down(layer, "")


def _mixture(spec: ModelSpec, ops: OpSet, layer: int) -> None:
    here, shared = f"layers.{layer}.", bool(spec.shared_intermediate_size)
    readers = ["router", "experts.gate", "experts.up"]
    readers += ["shared.gate", "shared.up"] if shared else []
    readers += ["shared_gate"] if spec.shared_gate else []
    ops.norm(here + "ffn_norm", tuple(here + name for name in readers))
    if shared:
        ops.feed_forward(layer, "shared", together=True)
    ops.route(layer)
    ops.feed_forward(layer, "experts", together=False)
    ops.project_down(layer, "experts")
    if shared:
        ops.project_down(layer, "shared")
