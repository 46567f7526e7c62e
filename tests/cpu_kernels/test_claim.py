"""How items are shared out: each once, and a worker's own run first."""

from typing import Any

import numpy as np
import pytest
from isotherm.cpu_kernels.claim import RUNS, claim, run_bits
from isotherm.cpu_kernels.descriptor import COUNTER, RUN_BITS, STEP_SLOTS, WIDTH, WORKERS


class Claims:
    """The counters of one op."""

    def __init__(self, workers: int, items: int) -> None:
        self.items = items
        self._counters, self._row, self._step = np.zeros(RUNS, np.int64), np.zeros(WIDTH, np.int64), _step(workers)
        self._row[COUNTER] = self._counters.ctypes.data

    def next(self, worker: int) -> int:
        return int(claim(self._row, self._step, worker, self.items))


def _step(workers: int) -> Any:
    step = np.zeros(STEP_SLOTS, np.int64)
    step[WORKERS], step[RUN_BITS] = workers, run_bits(workers)
    return step


@pytest.mark.parametrize(("workers", "runs"), [(1, 1), (2, 2), (3, 2), (4, 4), (7, 4), (8, 8), (64, 8)])
def test_runs_are_a_power_of_two_and_no_more_than_workers(workers: int, runs: int) -> None:
    assert 1 << run_bits(workers) == runs


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 8, 9, 20])
@pytest.mark.parametrize("items", [0, 1, 2, 7, 16, 41])
def test_workers_in_turn_take_each_item_once(workers: int, items: int) -> None:
    claims = Claims(workers, items)
    taken = [claims.next(i % workers) for i in range(items)]
    assert sorted(taken) == list(range(items))
    assert [claims.next(worker) for worker in range(workers)] == [-1] * workers


@pytest.mark.parametrize("worker", [0, 1, 2, 3])
def test_a_worker_takes_its_own_run_in_order_and_then_the_others(worker: int) -> None:
    claims = Claims(4, 22)
    runs = [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 15], [16, 17, 18, 19, 20, 21]]
    taken = [claims.next(worker) for _ in range(22)]
    assert taken == [item for i in range(4) for item in runs[(worker + i) % 4]]


def test_neighbours_share_a_run_where_workers_are_many() -> None:
    claims = Claims(16, 80)
    assert [claims.next(worker) for worker in (0, 1, 2, 15)] == [0, 1, 10, 70]
