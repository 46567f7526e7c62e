"""Float matrices in the layouts of quantised safetensors, each written from its definition, and what they then hold."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from support.tiny import write_hf
from torch import Tensor

E4M3, E8M0, BF16 = torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.bfloat16
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


@dataclass(frozen=True)
class Layout:
    """write(name without ".weight", float32 [rows, columns]) -> the tensors of the file, and float32 what they hold."""

    settings: Mapping[str, Any]
    write: Callable[[str, Tensor], tuple[dict[str, Tensor], Tensor]]
    format: str
    stacked: bool = False  # it is for [experts, rows, columns] and for gate and up as one


def ceil(a: int, b: int) -> int:
    return -(-a // b)


def spread(values: Tensor, rows: int, columns: int, shape: tuple[int, ...]) -> Tensor:
    """Each value over a block of rows x columns; what does not fit is cut off."""
    wide = values.repeat_interleave(rows, -2).repeat_interleave(columns, -1)
    return wide[..., : shape[-2], : shape[-1]]


def largest(w: Tensor, rows: int, columns: int) -> Tensor:
    """The largest magnitude of each block."""
    height, width = ceil(w.shape[-2], rows), ceil(w.shape[-1], columns)
    padded = torch.zeros(*w.shape[:-2], height * rows, width * columns)
    padded[..., : w.shape[-2], : w.shape[-1]] = w.abs()
    return padded.reshape(*w.shape[:-2], height, rows, width, columns).amax((-3, -1)).clamp(min=1e-12)


def fp8(suffix: str, dtype: torch.dtype, rows: int, columns: int) -> Any:
    """Blocks of rows x columns; 0 stands for all of them."""

    def write(name: str, w: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        height, width = rows or w.shape[-2], columns or w.shape[-1]
        scale = largest(w, height, width) / 448
        if dtype == E8M0:
            scale = torch.exp2(torch.ceil(torch.log2(scale)))
        scale = scale.to(dtype)
        factors = spread(scale.float(), height, width, tuple(w.shape))
        codes = (w / factors).to(E4M3)
        stored = name if w.ndim == 3 else name + ".weight"
        if not rows:
            scale = scale.reshape(w.shape[:-2])
        return {stored: codes, stored + suffix: scale}, codes.float() * factors

    return write


def pack(codes: Tensor, bits: int, axis: int, order: tuple[int, ...] = ()) -> Tensor:
    """Codes along an axis into int32 words, from the lowest bits; `order`: which code of a word comes at each place."""
    count = 32 // bits
    moved = codes.movedim(axis, -1).to(torch.int64)
    moved = torch.nn.functional.pad(moved, (0, -moved.shape[-1] % count))
    words = moved.reshape(*moved.shape[:-1], -1, count)[..., list(order or range(count))]
    total = (words << (bits * torch.arange(count))).sum(-1)
    return total.to(torch.int32).movedim(-1, axis).contiguous()


def integers(
    w: Tensor, bits: int, group: int, symmetric: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codes without sign [rows, columns], scales and zero points [rows, groups], and what they stand for."""
    rows, columns = w.shape
    top, groups = 2**bits - 1, ceil(columns, group)
    parts = torch.zeros(rows, groups * group)
    parts[:, :columns] = w
    parts = parts.reshape(rows, groups, group)
    if symmetric:
        scale = (parts.abs().amax(-1) / (2 ** (bits - 1) - 1)).clamp(min=1e-6).to(dtype)
        zeros = torch.full_like(scale, 2 ** (bits - 1), dtype=torch.int64)
    else:
        low, high = parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0)
        scale = ((high - low) / top).clamp(min=1e-6).to(dtype)
        zeros = torch.round(-low / scale.float()).clamp(1, top).to(torch.int64)
    wide = [spread(values, 1, group, (rows, columns)) for values in (scale.float(), zeros)]
    codes = (torch.round(w / wide[0]) + wide[1]).clamp(0, top).to(torch.int64)
    return codes, scale, zeros, (codes - wide[1]) * wide[0]


def gptq(bits: int, group: int, symmetric: bool, version: int, dtype: torch.dtype = torch.float16) -> Any:
    def write(name: str, w: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        size = group if group > 0 else w.shape[1]
        codes, scale, zeros, values = integers(w, bits, size, symmetric, dtype)
        stored = zeros - (1 if version == 1 else 0)
        return {
            f"{name}.qweight": pack(codes.T, bits, 0),
            f"{name}.qzeros": pack(stored.T, bits, 1),
            f"{name}.scales": scale.T.contiguous(),
            f"{name}.g_idx": (torch.arange(w.shape[1]) // size).to(torch.int32),
        }, values

    return write


def awq(group: int) -> Any:
    def write(name: str, w: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        codes, scale, zeros, values = integers(w, 4, group, False, torch.float16)
        return {
            f"{name}.qweight": pack(codes.T, 4, 1, AWQ_ORDER),
            f"{name}.qzeros": pack(zeros.T, 4, 1, AWQ_ORDER),
            f"{name}.scales": scale.T.contiguous(),
        }, values

    return write


def packed(bits: int, group: int, symmetric: bool, dtype: torch.dtype) -> Any:
    def write(name: str, w: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        codes, scale, zeros, values = integers(w, bits, group or w.shape[1], symmetric, dtype)
        tensors = {
            f"{name}.weight_packed": pack(codes, bits, 1),
            f"{name}.weight_scale": scale,
            f"{name}.weight_shape": torch.tensor(w.shape),
        }
        return tensors | ({} if symmetric else {f"{name}.weight_zero_point": pack(zeros, bits, 0)}), values

    return write


def int8(name: str, w: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    codes, scale, _, values = integers(w, 8, w.shape[1], True, BF16)
    return {f"{name}.weight": (codes - 128).to(torch.int8), f"{name}.weight_scale": scale}, values


def mxfp4(name: str, w: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """[experts, rows, columns]; rows of gate and up, which come one above the other, are woven."""
    if name.endswith("gate_up_proj"):
        w = torch.stack(w.chunk(2, 1), 2).flatten(1, 2)
    exponents = torch.ceil(torch.log2(largest(w, 1, 32) / 6)).clamp(-127, 127)
    factors = torch.exp2(exponents).repeat_interleave(32, -1)
    codes = (w / factors)[..., None].sub(torch.from_numpy(E2M1)).abs().argmin(-1)
    values = torch.from_numpy(E2M1)[codes] * factors
    if name.endswith("gate_up_proj"):
        values = torch.cat([values[:, ::2], values[:, 1::2]], 1)
    pairs = codes.reshape(*codes.shape[:2], -1, 16, 2)
    return {
        f"{name}_blocks": (pairs[..., 0] | pairs[..., 1] << 4).to(torch.uint8),
        f"{name}_scales": (exponents + 127).to(torch.uint8),
    }, values


def compressed(kind: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"dynamic": False, "actorder": None, **weights}}
    return {"quant_method": "compressed-tensors", "format": kind, "config_groups": {"group_0": group}, "ignore": []}


def _fp8(**more: Any) -> dict[str, Any]:
    return {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", **more}


def _gptq(bits: int, group: int, sym: bool, version: str) -> dict[str, Any]:
    return {
        "quant_method": "gptq", "bits": bits, "group_size": group, "sym": sym, "desc_act": False,
        "checkpoint_format": version,
    }  # fmt: skip


def _packed(bits: int, group: int, symmetric: bool) -> dict[str, Any]:
    strategy = {"strategy": "group", "group_size": group} if group else {"strategy": "channel", "group_size": None}
    return compressed("pack-quantized", num_bits=bits, type="int", symmetric=symmetric, **strategy)


BLOCKS = {"weight_block_size": [128, 128]}
FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True}
LAYOUTS = {
    "fp8 blocks": Layout(_fp8(**BLOCKS), fp8("_scale_inv", torch.float32, 128, 128), "FP8"),
    "fp8 blocks, bf16 scales": Layout(_fp8(**BLOCKS), fp8("_scale_inv", BF16, 128, 128), "FP8"),
    "fp8 blocks, powers of two": Layout(_fp8(**BLOCKS), fp8("_scale_inv", E8M0, 128, 128), "FP8"),
    "fp8 small blocks": Layout(_fp8(weight_block_size=[32, 64]), fp8("_scale", torch.float32, 32, 64), "FP8"),
    "fp8 tensors": Layout(_fp8(), fp8("_scale_inv", torch.float32, 0, 0), "FP8"),
    "fbgemm": Layout({"quant_method": "fbgemm_fp8"}, fp8("_scale", torch.float32, 1, 0), "FP8"),
    "float-quantized channels": Layout(
        compressed("float-quantized", strategy="channel", **FLOAT8), fp8("_scale", BF16, 1, 0), "FP8"
    ),
    "float-quantized blocks": Layout(
        compressed("float-quantized", strategy="block", block_structure=[128, 128], **FLOAT8),
        fp8("_scale", BF16, 128, 128),
        "FP8",
    ),
    "fp8 stacked": Layout(_fp8(**BLOCKS), fp8("_scale_inv", torch.float32, 128, 128), "FP8", stacked=True),
    "fp8 stacked channels": Layout(_fp8(), fp8("_scale_inv", torch.float32, 1, 0), "FP8", stacked=True),
    "mxfp4": Layout({"quant_method": "mxfp4"}, mxfp4, "MXFP4", stacked=True),
    "gptq": Layout(_gptq(4, 128, True, "gptq"), gptq(4, 128, True, 1), "INT4"),
    "gptq 32": Layout(_gptq(4, 32, True, "gptq_v2"), gptq(4, 32, True, 2), "INT4"),
    "gptq rows": Layout(_gptq(4, -1, True, "gptq"), gptq(4, -1, True, 1), "INT4"),
    "gptq, bf16 scales": Layout(_gptq(4, 128, True, "gptq"), gptq(4, 128, True, 1, BF16), "INT4_BF16"),
    "gptq zero points": Layout(_gptq(4, 64, False, "gptq"), gptq(4, 64, False, 1), "INT4_ZP"),
    "gptq zero points 2": Layout(_gptq(4, 128, False, "gptq_v2"), gptq(4, 128, False, 2), "INT4_ZP"),
    "gptq 8 bits": Layout(_gptq(8, 128, True, "gptq"), gptq(8, 128, True, 1), "INT8"),
    "awq": Layout({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}, awq(128), "INT4_ZP"),
    "awq 32": Layout({"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}, awq(32), "INT4_ZP"),
    "packed": Layout(_packed(4, 32, True), packed(4, 32, True, BF16), "INT4_BF16"),
    "packed 128": Layout(_packed(4, 128, True), packed(4, 128, True, torch.float16), "INT4"),
    "packed rows": Layout(_packed(4, 0, True), packed(4, 0, True, BF16), "INT4_BF16"),
    "packed zero points": Layout(_packed(4, 64, False), packed(4, 64, False, BF16), "INT4_ZP_BF16"),
    "packed rows, zero points": Layout(_packed(4, 0, False), packed(4, 0, False, torch.float16), "INT4_ZP"),
    "packed 8 bits": Layout(_packed(8, 128, True), packed(8, 128, True, BF16), "INT8_BF16"),
    "int-quantized": Layout(
        compressed("int-quantized", num_bits=8, type="int", symmetric=True, strategy="channel"), int8, "INT8_BF16"
    ),
}


SIZES = {"hidden_size": 192, "intermediate_size": 352}  # on no grid of blocks but that of 32 columns
_SIZES_OWN = {
    "qwen2_moe": {"moe_intermediate_size": 160, "shared_expert_intermediate_size": 96},
    "qwen3_moe": {"moe_intermediate_size": 160},
}
_FLOATS = r"norm|embed_tokens|lm_head|\.gate\.weight|shared_expert_gate|bias"
_EXPERT = re.compile(r"(.*experts)\.(\d+)\.(gate_proj|up_proj|down_proj|w1|w2|w3)\.weight")
_MIXTRAL = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}


def write_quantised(folder: Path, architecture: str, layout: Layout, *, floats: str = _FLOATS, **overrides: Any) -> Any:
    """A tiny model in the layout, but for tensors whose names have `floats` in them; experts only if it stacks them.

    Returns the transformers model in float32 of the same weights.
    """
    write_hf(folder, architecture, **{**SIZES, **_SIZES_OWN.get(architecture, {}), **overrides})
    tensors = load_file(folder / "model.safetensors")
    plain = {name: tensor for name, tensor in tensors.items() if re.search(floats, name)}
    matrices = {name.removesuffix(".weight"): w for name, w in tensors.items() if name not in plain}
    if layout.stacked:
        plain |= {name: w for name, w in tensors.items() if name not in plain and not _EXPERT.fullmatch(name)}
        matrices = stacked(tensors)
    assert matrices
    parts = {name: layout.write(name, w) for name, w in matrices.items()}
    exact = plain | {name: values for module, (_, values) in parts.items() for name, values in _apart(module, values)}
    file = folder / "model.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in exact.items()}, file, {"format": "pt"})
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    save_file(plain | {name: part for found, _ in parts.values() for name, part in found.items()}, file)
    settings = json.loads((folder / "config.json").read_text()) | {"quantization_config": dict(layout.settings)}
    (folder / "config.json").write_text(json.dumps(settings))
    return model


def stacked(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The experts of each layer in one gate_up_proj and one down_proj."""
    parts: dict[str, dict[str, list[Tensor]]] = {}
    for name in sorted(filter(_EXPERT.fullmatch, tensors), key=lambda name: [int(n) for n in re.findall(r"\d+", name)]):
        block, _, part = _EXPERT.fullmatch(name).groups()
        parts.setdefault(block, {}).setdefault(_MIXTRAL.get(part, part), []).append(tensors[name])
    banks = {}
    for block, found in parts.items():
        gate, up, down = (torch.stack(found[part]) for part in _MIXTRAL.values())
        banks |= {f"{block}.gate_up_proj": torch.cat([gate, up], 1), f"{block}.down_proj": down}
    return banks


def _apart(module: str, values: Tensor) -> list[tuple[str, Tensor]]:
    """The tensors of a model of floats."""
    if values.ndim == 2:
        return [(module + ".weight", values)]
    block, _, part = module.rpartition(".")
    names = ("w1", "w3", "w2") if "block_sparse_moe" in block else tuple(_MIXTRAL.values())
    names = names[:2] if part == "gate_up_proj" else names[2:]
    return [
        (f"{block}.{expert}.{name}.weight", rows.clone())
        for expert, one in enumerate(values)
        for name, rows in zip(names, one.chunk(len(names), 0), strict=True)
    ]
