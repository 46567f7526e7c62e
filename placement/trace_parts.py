"""The parts of a trace file: its header and arrays, checked before any size they state is believed."""

import io
import itertools
import json
import math
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .trace import PHASES, Phase, PhaseCounts, RoutingTrace

FORMAT = "isotherm routing trace"
VERSION = 1
MAX_HEADER_BYTES = 64 << 10
MAX_ARRAY_BYTES = 256 << 20  # of all arrays together
NPY_HEADER_BYTES = 4096  # more than that before an array is not one of ours
MAX_LAYERS, MAX_EXPERTS, MAX_TOP_K, MAX_TOKENS = 1 << 10, 1 << 14, 1 << 8, 1 << 24
ROUNDING = 1e-6


class OtherVersion(Exception):
    """The file is sound as far as one can tell, but was written by an earlier or later release."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """arrays: type and shape of each array that follows."""

    fingerprint: str
    layers: tuple[int, ...]
    num_experts: int
    top_k: int
    steps: dict[Phase, float]
    arrays: dict[str, tuple[DTypeLike, tuple[int, ...]]]


def array_names() -> Iterator[tuple[Phase, str]]:
    """Phase and field of each array of counts."""
    for phase in PHASES:
        for name in ("counts", "mass", "tokens", "distinct"):
            yield phase, name


def read_header(archive: zipfile.ZipFile) -> Header:
    """Raises ValueError, KeyError or what zipfile raises for damage, OtherVersion for another version."""
    info = archive.getinfo("header.npy")
    if info.file_size > MAX_HEADER_BYTES:
        raise ValueError(f"its header has {info.file_size} bytes, more than {MAX_HEADER_BYTES}")
    text, at = _npy(archive, info, np.uint8)
    fields = json.loads(text[at:])
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise ValueError("its header is not that of a routing trace")
    version = _whole(fields, "version", 0, 1 << 31)
    if version != VERSION:
        remedy = "record it again with `isotherm profile`" if version < VERSION else "update Isotherm to read it"
        raise OtherVersion(f"the routing trace has version {version}, and this release reads {VERSION}; {remedy}")
    experts = _whole(fields, "num_experts", 1, MAX_EXPERTS)
    top_k = _whole(fields, "top_k", 1, min(MAX_TOP_K, experts))
    tokens = _whole(fields, "sample_tokens", 0, MAX_TOKENS)
    layers = _layers(fields)
    arrays: dict[str, tuple[DTypeLike, tuple[int, ...]]] = {
        f"{phase}_{name}": ("<f8", (len(layers), experts) if name in ("counts", "mass") else (len(layers),))
        for phase, name in array_names()
    }
    arrays["sample"] = ("<u2", (tokens, len(layers), top_k))
    arrays["starts"] = ("<i8", (_whole(fields, "sequences", 0, tokens),))
    total = sum(_nbytes(*array) for array in arrays.values())
    if total > MAX_ARRAY_BYTES:
        raise ValueError(f"its header states {total} bytes of arrays, more than the {MAX_ARRAY_BYTES} of any trace")
    return Header(
        fingerprint=_fingerprint(fields),
        layers=layers,
        num_experts=experts,
        top_k=top_k,
        steps=_steps(fields),
        arrays=arrays,
    )


def read_array(archive: zipfile.ZipFile, name: str, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """The array `name`, which must have this type and shape."""
    info = archive.getinfo(f"{name}.npy")
    nbytes = _nbytes(dtype, shape)
    if not 0 <= info.file_size - nbytes <= NPY_HEADER_BYTES:
        raise ValueError(f"its {name} has {info.file_size} bytes where the header states {nbytes}")
    data, at = _npy(archive, info, dtype, shape)
    return np.frombuffer(data, dtype, offset=at).reshape(shape).copy()


def trace_of(header: Header, array: Callable[[str], NDArray[Any]]) -> RoutingTrace:
    """Raises ValueError for numbers that contradict each other. array: gives the array of a name."""
    phases: dict[Phase, PhaseCounts] = {}
    for phase in PHASES:
        parts = {name: array(f"{phase}_{name}") for owner, name in array_names() if owner == phase}
        phases[phase] = PhaseCounts(steps=header.steps[phase], **parts)
        _check_counts(phase, phases[phase], header.top_k)
    trace = RoutingTrace(
        fingerprint=header.fingerprint,
        num_experts=header.num_experts,
        top_k=header.top_k,
        layers=header.layers,
        phases=phases,
        sample=array("sample"),
        starts=array("starts"),
    )
    _check_sample(trace)
    return trace


def _check_counts(name: Phase, phase: PhaseCounts, top_k: int) -> None:
    for array in (phase.counts, phase.mass, phase.tokens, phase.distinct):
        if not np.isfinite(array).all():
            raise ValueError(f"its counts of {name} are not all finite")
    if min(array.min(initial=0.0) for array in (phase.counts, phase.tokens, phase.distinct)) < 0:
        raise ValueError(f"its counts of {name} are not all positive")
    chosen = phase.counts.sum(axis=1)
    if not np.allclose(chosen, phase.tokens * top_k, rtol=ROUNDING, atol=ROUNDING):
        raise ValueError(f"its counts of {name} do not add up to {top_k} experts for each token")
    if (phase.distinct > chosen * (1 + ROUNDING) + ROUNDING).any():
        raise ValueError(f"its counts of {name} have more experts touched than chosen")


def _check_sample(trace: RoutingTrace) -> None:
    tokens, starts = len(trace.sample), trace.starts
    if trace.sample.max(initial=0) >= trace.num_experts:
        raise ValueError(f"its sample names expert {trace.sample.max()} of {trace.num_experts}")
    ordered = np.sort(trace.sample, axis=-1)
    if (ordered[..., 1:] == ordered[..., :-1]).any():
        raise ValueError("its sample names an expert twice for one token")
    if bool(tokens) != bool(len(starts)):
        raise ValueError(f"its sample of {tokens} tokens has {len(starts)} sequences")
    if len(starts) and (starts[0] != 0 or starts[-1] >= tokens or (np.diff(starts) <= 0).any()):
        raise ValueError("the sequences of its sample are out of order")


def _npy(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, dtype: DTypeLike, shape: tuple[int, ...] | None = None
) -> tuple[bytes, int]:
    """All bytes of a member, and where in them the numbers begin. Without `shape` any row will do."""
    with archive.open(info) as member:
        # Never more than stated, however much the compressed data would give.
        data = member.read(info.file_size)
    stream = io.BytesIO(data)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError(f"{info.filename} is not an array in format 1.0")
    found, fortran, kind = np.lib.format.read_array_header_1_0(stream)
    at = stream.tell()
    wanted = (len(data) - at,) if shape is None else shape
    if kind != np.dtype(dtype) or fortran or found != wanted or len(data) - at != _nbytes(dtype, wanted):
        raise ValueError(f"{info.filename} is an array of {kind} {list(found)}, not of {dtype} {list(wanted)}")
    return data, at


def _nbytes(dtype: DTypeLike, shape: tuple[int, ...]) -> int:
    return np.dtype(dtype).itemsize * math.prod(shape)


def _whole(fields: dict[str, Any], name: str, low: int, high: int) -> int:
    value = fields.get(name)
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"its header states {name} {value!r:.40}, not a whole number from {low} to {high}")
    return value


def _layers(fields: dict[str, Any]) -> tuple[int, ...]:
    layers = fields.get("layers")
    if not isinstance(layers, list) or not 1 <= len(layers) <= MAX_LAYERS or {type(n) for n in layers} != {int}:
        raise ValueError(f"its header does not state 1 to {MAX_LAYERS} numbers of layers")
    if layers[0] < 0 or any(later <= earlier for earlier, later in itertools.pairwise(layers)):
        raise ValueError("the layers in its header are out of order")
    return tuple(layers)


def _fingerprint(fields: dict[str, Any]) -> str:
    fingerprint = fields.get("fingerprint")
    if not isinstance(fingerprint, str) or not fingerprint.isprintable() or not 1 <= len(fingerprint) <= 256:
        raise ValueError("its header does not state the fingerprint of a model")
    return fingerprint


def _steps(fields: dict[str, Any]) -> dict[Phase, float]:
    steps = fields.get("steps")
    if not isinstance(steps, dict):
        raise ValueError("its header does not state the steps of each phase")
    found: dict[Phase, float] = {}
    for phase in PHASES:
        value = steps.get(phase)
        if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise ValueError(f"its header states {value!r:.40} steps of {phase}")
        found[phase] = float(value)
    return found
