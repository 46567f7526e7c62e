"""Running one op kernel on NumPy arrays: a descriptor row, a step array and a work counter, by one or more threads."""

import threading
from typing import Any

import numpy as np
from isotherm.cpu_kernels.claim import RUNS, run_bits
from isotherm.cpu_kernels.descriptor import COUNTER, RUN_BITS, STEP_SLOTS, WIDTH, WORKERS, bits_of, slots


def run_op(
    kernel: Any, fields: tuple[str, ...], values: dict[str, Any], *, step: dict[int, int], threads: int = 1
) -> None:
    """Run `kernel` to its end. `values`: a field's array (its address is passed), int, or float (its bits)."""
    unknown = values.keys() - set(fields)
    assert not unknown, f"no such fields: {unknown}"
    counter = np.zeros(RUNS, np.int64)
    row = np.zeros(WIDTH, np.int64)
    row[COUNTER] = counter.ctypes.data
    for column, name in zip(slots(fields), fields, strict=True):
        row[column] = _as_int64(values.get(name, 0))
    counts = np.zeros(STEP_SLOTS, np.int64)
    counts[WORKERS], counts[RUN_BITS] = threads, run_bits(threads)
    for slot, count in step.items():
        counts[slot] = count
    workers = [threading.Thread(target=kernel, args=(row, counts, np.int64(w))) for w in range(1, threads)]
    for worker in workers:
        worker.start()
    kernel(row, counts, np.int64(0))
    for worker in workers:
        worker.join()


def _as_int64(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return int(value.ctypes.data)
    return bits_of(value) if isinstance(value, float) else int(value)
