"""Trace files: a .npz without pickled objects, written in one step and read with suspicion.

A zip archive of .npy arrays, in format version 1.0 and little-endian:

header    uint8, JSON: format, version, created (UTC), fingerprint, layers, num_experts, top_k, steps by phase,
          sample_tokens and sequences
P_counts, P_mass        float64 [layers, experts], for each phase P, prefill and decode
P_tokens, P_distinct    float64 [layers]
sample    uint16 [sample_tokens, layers, top_k]
starts    int64 [sequences]

What the arrays mean is said in `trace`. There is no text in it, and no token.
"""

import json
import os
import zipfile
import zlib
from datetime import UTC, datetime
from pathlib import Path
from stat import S_ISREG
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from .files import lock_of, locked, replacing
from .trace import PHASES, SAMPLE_TOKENS, RoutingTrace, TraceError, appended
from .trace_parts import FORMAT, VERSION, OtherVersion, array_names, read_array, read_header, trace_of

RECORD = "record the traffic again with `isotherm profile`"
MAX_FILE_BYTES = 256 << 20
# What reading a damaged archive can end with.
DAMAGE = (ValueError, KeyError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error, OverflowError)


def save_trace(path: Path, trace: RoutingTrace) -> None:
    """Writes or replaces the file in one step, without regard to those who `merge_into` it.

    Raises TraceError for a trace without traffic, OSError as the system does.
    """
    if trace.empty:
        raise TraceError(f"{path}: no token was recorded, so there is no routing trace to write; run prompts first")
    arrays: dict[str, NDArray[Any]] = {"header": np.frombuffer(json.dumps(_header(trace)).encode(), np.uint8)}
    arrays |= {f"{phase}_{name}": getattr(trace.phases[phase], name) for phase, name in array_names()}
    arrays |= {"sample": trace.sample, "starts": trace.starts}
    with replacing(path) as file, _archive(file) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)


def load_trace(path: Path, fingerprint: str | None = None) -> RoutingTrace:
    """The trace in the file. fingerprint: of the model it must belong to.

    Raises TraceError, with the path and the remedy, for a file that is missing, damaged, too large, of another version
    or model, or without traffic.
    """
    try:
        trace = _read(path)
    except FileNotFoundError:
        raise TraceError(f"{path}: there is no such routing trace; record one with `isotherm profile`") from None
    except OSError as error:
        raise TraceError(
            f"{path}: the routing trace cannot be read: {error.strerror or error}; name another file"
        ) from error
    except OtherVersion as error:
        raise TraceError(f"{path}: {error}") from None
    except DAMAGE as error:
        raise TraceError(f"{path} is damaged or no routing trace: {error}; move it away and {RECORD}") from error
    if fingerprint is not None and trace.fingerprint != fingerprint:
        raise TraceError(
            f"{path}: the routing trace is of model {trace.fingerprint}, not of {fingerprint}; name the trace of this "
            f"model, or {RECORD}"
        )
    if trace.empty:
        raise TraceError(f"{path}: the routing trace holds no traffic; {RECORD}")
    return trace


def merge_into(
    path: Path, trace: RoutingTrace, half_life: float | None = None, limit: int = SAMPLE_TOKENS
) -> RoutingTrace:
    """Adds newer traffic to the file, which need not exist, and returns what is in it now (see `trace.appended`).

    Writers take turns by a lock file beside it. A trace without traffic changes nothing. Raises TraceError as
    `load_trace` does, and leaves the file as it is then.
    """
    with locked(lock_of(path)):
        before = load_trace(path, trace.fingerprint) if path.exists() else None
        if before is None:
            after = trace
        elif trace.empty:
            return before
        else:
            try:
                after = appended(before, trace, half_life, limit)
            except TraceError as error:
                raise TraceError(f"{path}: {error}") from error
        if not after.empty:
            save_trace(path, after)
        return after


def _header(trace: RoutingTrace) -> dict[str, object]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "fingerprint": trace.fingerprint,
        "layers": list(trace.layers),
        "num_experts": trace.num_experts,
        "top_k": trace.top_k,
        "steps": {name: float(trace.phases[name].steps) for name in PHASES},
        "sample_tokens": len(trace.sample),
        "sequences": len(trace.starts),
    }


def _archive(file: IO[bytes]) -> zipfile.ZipFile:
    return zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1)


def _read(path: Path) -> RoutingTrace:
    with path.open("rb") as file:
        if not S_ISREG(os.fstat(file.fileno()).st_mode):  # a device has no size, and may have no end
            raise OSError("it is no file of the disk")
        size = file.seek(0, 2)
        if size > MAX_FILE_BYTES:
            raise ValueError(f"it has {size} bytes, more than the {MAX_FILE_BYTES} that any trace may have")
        with zipfile.ZipFile(file) as archive:
            header = read_header(archive)
            return trace_of(header, lambda name: read_array(archive, name, *header.arrays[name]))
