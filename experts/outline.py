"""The sizes of a model, as placement wants them: of one that is here, or of one that is still to be downloaded."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..cpu_kernels.kv_layout import part_bytes
from ..cpu_kernels.layout import KINDS, KV_BLOCK, record_bytes
from ..placement.shape import LayerShape, ModelShape, Product
from .model import Model
from .pack import VECTOR, Slot, slots_of
from .paper import open_outline
from .spec import ModelSpec

_BANK = "experts."


def outline(path: str | Path, kv_kind: str, weight_format: str | None = None) -> ModelShape:
    """The shape of the model at `path`, of which no weight is read.

    path: a .gguf file, of which the header is enough; a folder of safetensors, or one with only its config.json.
    kv_kind: numbers of the KV cache. weight_format: a name of `formats.FORMATS` as if all matrices but routers were
    stored so, and what a config.json alone may need.

    Raises CheckpointError for a broken model, UnsupportedModelError for one that is not implemented.
    """
    model, whole = open_outline(path, weight_format)
    return shape_of(model, kv_kind, whole=whole)


def shape_of(model: Model, kv_kind: str, *, whole: bool = True) -> ModelShape:
    """The shape of an opened model. Raises UnsupportedModelError where experts of a layer differ in their kind."""
    name, fingerprint = name_of(model.checkpoint.path), model.checkpoint.fingerprint
    return shape_of_slots(model.spec, slots_of(model), kv_kind, name=name, fingerprint=fingerprint, whole=whole)


def shape_of_slots(
    spec: ModelSpec, slots: Sequence[Slot], kv_kind: str, *, name: str, fingerprint: str, whole: bool = True
) -> ModelShape:
    """The shape of a decoder whose weights lie in such slots."""
    top = {slot.role: slot for slot in slots if not slot.role.startswith("layers.")}
    embed = _product("embed", top["embed"])
    layers: list[list[Slot]] = [[] for _ in range(spec.num_layers)]
    for slot in slots:
        if slot.role.startswith("layers."):
            layers[int(slot.role.split(".")[1])].append(slot)
    kv_bytes = spec.num_kv_heads * part_bytes(kv_kind, spec.head_dim) // KV_BLOCK
    return ModelShape(
        name=name,
        fingerprint=fingerprint,
        layers=tuple(_layer(own, spec, kv_bytes) for own in layers),
        embed=embed,
        head=_product("head", top.get("head", top["embed"])),
        hidden_size=spec.hidden_size,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        kv_kind=kv_kind,
        kv_block=KV_BLOCK,
        max_context=spec.max_context,
        tied="head" not in top,
        vector_bytes=sum(slot.nbytes for slot in top.values() if slot.kind == VECTOR),
        whole=whole,
    )


def name_of(path: Path) -> str:
    """The model's name: a GGUF file's stem, without the count of a split one, or the folder's name."""
    resolved = path.resolve()
    name = (resolved.parent if resolved.suffix in (".safetensors", ".json") else resolved).name
    readable = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return readable.removesuffix(".gguf").split("-00001-of-")[0]


def _layer(slots: Sequence[Slot], spec: ModelSpec, kv_bytes: int) -> LayerShape:
    own: Mapping[str, list[Slot]] = {"dense": [], "expert": [], VECTOR: []}
    for slot in slots:
        if slot.kind == VECTOR:
            own[VECTOR].append(slot)
        elif slot.expert is None:
            own["dense"].append(slot)
        elif slot.expert == 0:  # the others are alike
            own["expert"].append(slot)
    routing = spec.routing if own["expert"] else None
    return LayerShape(
        dense=tuple(_product(_role(slot), slot) for slot in own["dense"]),
        expert=tuple(_product(_role(slot).removeprefix(_BANK), slot) for slot in own["expert"]),
        num_experts=routing.num_experts if routing else 0,
        top_k=routing.top_k if routing else 0,
        kv_bytes=kv_bytes,
        window=spec.sliding_window,
        vector_bytes=sum(slot.nbytes for slot in own[VECTOR]),
        sent_bytes=_sent_bytes(own["expert"]) if routing else None,
    )


def _sent_bytes(expert: Sequence[Slot]) -> int:
    """Of a token in all forms that the gate and the up projection of an expert read."""
    read = {KINDS[slot.kind].record for slot in expert if not slot.role.endswith("down")}
    if "plain" in read:
        read.discard("bf16")  # it is rounded there
    return sum(record_bytes(expert[0].columns, form) for form in read)


def _role(slot: Slot) -> str:
    """Without the number of its layer."""
    return slot.role.split(".", 2)[2]


def _product(role: str, slot: Slot) -> Product:
    return Product(role=role, kind=slot.kind, rows=slot.rows, columns=slot.columns, nbytes=slot.nbytes)
