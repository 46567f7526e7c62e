"""The thread team: every op once and in order on any number of threads, no CPU while idle, a clean end."""

import threading
import time

import numpy as np
import pytest
from isotherm.cpu_kernels.descriptor import N_TOKENS, STEP_SLOTS
from isotherm.cpu_kernels.matmul import SCRATCH_BYTES
from isotherm.cpu_kernels.program import Program
from isotherm.cpu_kernels.team import Team
from support.matrices import line_aligned, random_matrix, random_rows, records

TOKENS, WIDTH = 5, 128


class Chain:
    """A program of `length` products x -> W x -> W W x ..., each of which needs all of the one before."""

    def __init__(self, length: int) -> None:
        self.matrix = random_matrix("f32", WIDTH, WIDTH)
        self.rows = [line_aligned((TOKENS, 4 * WIDTH)) for _ in range(length + 1)]
        self.rows[0][...] = records(random_rows(TOKENS, WIDTH) * np.float32(1e-3), "plain")
        self._nothing = np.zeros(WIDTH, np.float32)
        self.step = np.zeros(STEP_SLOTS, np.int64)
        self.step[N_TOKENS] = TOKENS
        self._scratch = line_aligned((8, SCRATCH_BYTES))
        program = Program()
        for source, target in zip(self.rows, self.rows[1:], strict=False):
            program.add(
                "linear",
                x=source.ctypes.data, x_stride=source.strides[0], w=self.matrix.tiles.ctypes.data, chunk=1,
                out=target.ctypes.data, out_stride=target.strides[0], bias=self._nothing.ctypes.data, add=0,
                low=-10.0, high=10.0, count_slot=N_TOKENS, rows=0, scratch=self._scratch.ctypes.data,
                **self.matrix.fields,
            )  # fmt: skip
            program.meet()
        self.program = program.freeze()

    def run(self, team: Team) -> np.ndarray:
        for row in self.rows[1:]:
            row[...] = 0xFF
        team.run(self.program, self.step)
        return self.rows[-1].view(np.float32).copy()


@pytest.fixture
def expected() -> np.ndarray:
    team = Team(1)
    result = Chain(12).run(team)
    team.close()
    assert np.isfinite(result).all() and result.any()
    return result


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_many_runs_on_more_threads_than_cores_are_the_same(threads, expected):
    team, chain = Team(threads), Chain(12)
    try:
        for _ in range(60):
            np.testing.assert_array_equal(chain.run(team), expected)
    finally:
        team.close()


def test_runs_after_a_rest_wake_sleeping_workers(expected):
    team, chain = Team(3), Chain(12)
    try:
        for _ in range(10):
            time.sleep(0.005)  # far longer than workers spin
            np.testing.assert_array_equal(chain.run(team), expected)
    finally:
        team.close()


def test_programs_take_turns(expected):
    team, long, short = Team(2), Chain(12), Chain(1)
    try:
        first = short.run(team)
        for _ in range(20):
            np.testing.assert_array_equal(long.run(team), expected)
            np.testing.assert_array_equal(short.run(team), first)
    finally:
        team.close()


def test_teams_side_by_side_do_not_meet(expected):
    teams, chains = [Team(2) for _ in range(3)], [Chain(12) for _ in range(3)]
    results: list[np.ndarray] = []
    runs = [
        threading.Thread(target=lambda team=team, chain=chain: results.extend(chain.run(team) for _ in range(10)))
        for team, chain in zip(teams, chains, strict=True)
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    for team in teams:
        team.close()
    assert len(results) == 30
    for result in results:
        np.testing.assert_array_equal(result, expected)


def test_other_python_threads_run_during_a_run():
    """The GIL is free: a thread that counts goes on while the team computes."""
    team, chain, counted, stop = Team(2), Chain(400), [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            counted[0] += 1

    counter = threading.Thread(target=count)
    counter.start()
    moved = 0
    try:
        for _ in range(20):
            before = counted[0]
            team.run(chain.program, chain.step)
            moved += counted[0] > before
    finally:
        stop.set()
        counter.join()
        team.close()
    assert moved


def test_an_idle_team_uses_no_cpu():
    team, chain = Team(4), Chain(2)
    try:
        chain.run(team)
        time.sleep(0.05)
        before = time.process_time()
        time.sleep(1.0)
        assert time.process_time() - before < 0.01
    finally:
        team.close()


def test_close_ends_all_workers_and_may_be_repeated():
    before = set(threading.enumerate())
    team = Team(4)
    workers = set(threading.enumerate()) - before
    assert len(workers) == 3
    Chain(2).run(team)
    team.close()
    team.close()
    assert not any(worker.is_alive() for worker in workers)


def test_close_without_a_run_ends_all_workers():
    team = Team(3)
    team.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("isotherm-cpu")]


def test_a_closed_team_refuses_to_run():
    team = Team(2)
    team.close()
    with pytest.raises(RuntimeError, match="closed"):
        Chain(1).run(team)


def test_a_team_has_at_least_one_thread():
    with pytest.raises(ValueError, match="at least 1"):
        Team(0)


def test_an_op_needs_all_its_fields():
    with pytest.raises(ValueError, match="embed takes"):
        Program().add("embed", tokens=0)
