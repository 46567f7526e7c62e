"""A small model like another one, with random weights: packed for the kernels, and as floats for the definition."""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..cpu_kernels import reference
from ..cpu_kernels.layout import E4M3, KINDS, ROWS, SPAN, packed_bytes, packed_shape, padded
from .memory import arena
from .pack import PackedMatrix, PackedWeights
from .random_codes import fill_codes
from .roles import Shape, role_shapes
from .spec import ModelSpec

_WIDTH, _VOCABULARY, _EXPERTS, _POSITIONS = SPAN, 32, 4, 512
_ROUNDED = {"o", "gate", "up", "down"}  # of the kind that most of the model's matrices have; the others are float32

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class DenseWeights:
    """Tensors by role as float32, a bank's with its experts first."""

    tensors: dict[str, Floats]

    def has(self, role: str) -> bool:
        return role in self.tensors

    def dense(self, role: str) -> Floats:
        return self.tensors[role]

    def dense_expert(self, role: str, expert: int) -> Floats:
        """One expert of a bank, [rows, columns]."""
        matrix: Floats = self.tensors[role][expert]
        return matrix


@dataclass(frozen=True, slots=True)
class SmallModel:
    """What it is, and its weights in both forms."""

    spec: ModelSpec
    packed: PackedWeights
    weights: DenseWeights


def small_spec(spec: ModelSpec) -> ModelSpec:
    """The same rules and heads of the same size at small widths; a layer of each sort, and the last, which is run for
    fewer tokens. All experts are chosen, so that no rounding decides between two of them."""
    layers = (*sorted(set(spec.moe_layers)), spec.moe_layers[-1])
    shared_heads = min(spec.num_heads // spec.num_kv_heads, 4)
    return replace(
        spec,
        num_layers=len(layers),
        moe_layers=layers,
        hidden_size=_WIDTH,
        vocab_size=_VOCABULARY,
        num_heads=2 * shared_heads,
        num_kv_heads=2,
        max_context=_POSITIONS,
        sliding_window=None if spec.sliding_window is None else min(spec.sliding_window, _POSITIONS // 8),
        routing=None if spec.routing is None else replace(spec.routing, num_experts=_EXPERTS, top_k=_EXPERTS),
        intermediate_size=_WIDTH if spec.intermediate_size else 0,
        moe_intermediate_size=_WIDTH if spec.moe_intermediate_size else 0,
        shared_intermediate_size=_WIDTH if spec.shared_intermediate_size else 0,
    )


def small_model(spec: ModelSpec, weights: PackedWeights) -> SmallModel:
    """A model with the rules of `spec` and the biases, kinds and kernels of `weights`."""
    small = small_spec(spec)
    biases = {role.rsplit(".", 1)[1] for role in weights.vectors if role.endswith("_bias")}
    shapes = role_shapes(small, biases)
    kinds = {role: _kind(role, weights) for role, shape in shapes.items() if len(shape) > 1}
    sizes = {role: _nbytes(kinds.get(role), shape) for role, shape in shapes.items()}
    packed = PackedWeights(arena(sum(sizes.values())), kernels=weights.kernels)
    dense, offset = {}, 0
    for number, (role, shape) in enumerate(shapes.items()):
        place, rng = packed.arena[offset : offset + sizes[role]], np.random.default_rng(number)
        if role in kinds:
            dense[role] = _add_matrices(packed, role, kinds[role], shape, place, rng)
        else:
            packed.vectors[role] = place.view(np.float32)
            packed.vectors[role][: shape[0]] = rng.uniform(0.5, 1.5, shape[0])
            dense[role] = packed.vectors[role][: shape[0]]
        offset += sizes[role]
    return SmallModel(small, packed, DenseWeights(dense))


def _kind(role: str, weights: PackedWeights) -> str:
    if role == "embed":
        return weights.matrices["embed"].kind
    if role.rsplit(".", 1)[-1] not in _ROUNDED:
        return "f32"
    others = [matrix.kind for name, matrix in weights.matrices.items() if name not in ("embed", "head")]
    return Counter([*others, *(bank[0].kind for bank in weights.banks.values())]).most_common(1)[0][0]


def _nbytes(kind: str | None, shape: Shape) -> int:
    if kind is None:
        return 4 * padded(shape[0])
    return int(np.prod(shape[:-2], dtype=np.int64)) * packed_bytes(kind, *shape[-2:])


def _add_matrices(
    packed: PackedWeights, role: str, kind: str, shape: Shape, place: Bytes, rng: np.random.Generator
) -> Floats:
    """Fill a matrix, or the matrices of a bank, and give their numbers."""
    rows, columns = shape[-2:]
    tiles = place.reshape(-1, *packed_shape(kind, rows, columns)[1:])
    _fill(kind, tiles, columns, rng)
    if len(shape) == 2:
        packed.matrices[role] = PackedMatrix(kind, rows, columns, tiles.ctypes.data)
        return reference.unpack(kind, tiles, rows, columns)
    bank = tiles.reshape(shape[0], -1, *tiles.shape[1:])
    packed.banks[role] = [PackedMatrix(kind, rows, columns, expert.ctypes.data) for expert in bank]
    return np.stack([reference.unpack(kind, expert, rows, columns) for expert in bank])


def _fill(kind: str, tiles: Bytes, columns: int, rng: np.random.Generator) -> None:
    """Any codes or floats, with a deviation that keeps the size of what is multiplied."""
    codes, deviation = KINDS[kind].codes, np.float32(columns) ** -0.5
    if kind == "f8":
        numbers = np.array(E4M3)
        numbers[[0x7F, 0xFF]] = 0  # no numbers
        tiles[:] = rng.choice(np.flatnonzero(numbers), tiles.shape)
        tiles[:, :, : 4 * ROWS] = np.full(ROWS, deviation / numbers.std(), np.float32).view(np.uint8)
    elif codes is None:
        values = rng.standard_normal(tiles.shape[0] * tiles.shape[1] * SPAN * ROWS, np.float32) * deviation
        bits = (
            values.astype(np.float16) if kind == "f16" else reference.bfloat_bits(values) if kind == "bf16" else values
        )
        tiles[:] = bits.view(np.uint8).reshape(tiles.shape)
    else:
        fill_codes(codes, tiles, float(deviation), rng)
