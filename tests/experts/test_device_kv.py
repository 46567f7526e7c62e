"""Blocks of the KV cache on their way between an accelerator and RAM: their bytes, what is counted, what it takes."""

from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from isotherm.cpu_kernels.descriptor import N_TOKENS
from isotherm.experts import kv_staging
from isotherm.experts.device_kv import DeviceKv, KvRoom
from isotherm.experts.device_memory import DeviceMemory
from isotherm.experts.host_cost import HostCost
from isotherm.experts.kv_store import KvStore
from isotherm.experts.random_decoder import small_spec
from isotherm.experts.segment import HostClock
from isotherm.experts.step_inputs import StepInputs, StepLimits
from isotherm.gpu_kernels.device import Cost, DeviceLostError, DeviceMemoryError
from isotherm.gpu_kernels.device_spec import Spec
from isotherm.gpu_kernels.emulated import Emulated
from support import cost_cases

LIMITS = StepLimits(tokens=64, sequences=4, blocks_per_sequence=8)
LAYERS = (0, 2)
SPEC = small_spec(128)
READ_GB_S = 8.0
Step = list[tuple[list[int], int, int]]  # of each sequence its blocks, how many tokens are known, how many are computed


class Served:
    """Some layers' keys and values on an accelerator. What each token writes is a byte that nothing else is."""

    def __init__(self, blocks: int, num_blocks: int = 16, late: int | None = None, *, clocked: bool = False) -> None:
        self.told: list[tuple[str, str]] = []
        self.card = Emulated(Spec(), late=None if late is None else Random(late))
        self.memory = DeviceMemory(self.card, "keys and values")
        store = KvStore(SPEC, num_blocks, "int8", LAYERS if blocks < num_blocks else ())
        clock = HostClock(self.card, HostCost(cost_cases.model(), cost_cases.cpu(read_gb_s=READ_GB_S)))
        room = KvRoom(
            store=store,
            blocks=blocks,
            clock=clock if clocked else None,
            note=lambda name, detail: self.told.append((name, detail)),
        )
        self.kv = DeviceKv(self.card, self.memory, SPEC, room, LAYERS)
        self.inputs = StepInputs(LIMITS)
        self.written: dict[tuple[int, int], int] = {}  # by block and position in it
        self.count = 0

    def run(self, step: Step) -> None:
        self.lay(step)
        self.kv.begin(self.inputs)
        self.check(step)
        self.write(step)
        self.card.synchronise()
        self.kv.finish()

    def lay(self, step: Step) -> None:
        row = 0
        for number, (blocks, start, count) in enumerate(step):
            self.inputs.tables[number, : len(blocks)] = blocks
            for position in range(start, start + count):
                self.inputs.positions[row], self.inputs.sequence[row] = position, number
                self.inputs.slots[row] = blocks[position // 16] * 16 + position % 16
                row += 1
        self.inputs.counts[N_TOKENS] = row

    def check(self, step: Step) -> None:
        """What was written before is where the step will look for it."""
        tables = self.kv.tables(self.inputs.tables)
        self.card.synchronise()
        for number, (blocks, start, _) in enumerate(step):
            for position in range(start):
                expected = self.written[blocks[position // 16], position % 16]
                assert self.bytes_at(int(tables[number, position // 16]), position % 16) == {expected}

    def bytes_at(self, place: int, offset: int) -> set[int]:
        return {
            int(cache.memory[head, place, offset])
            for cache in self.kv.caches.values()
            for head in range(SPEC.num_kv_heads)
        }

    def write(self, step: Step) -> None:
        slots = self.kv.slots(self.inputs.slots)
        row = 0
        for blocks, start, count in step:
            for position in range(start, start + count):
                self.count = self.count % 250 + 1
                self.written[blocks[position // 16], position % 16] = self.count
                self.put(int(slots[row]), self.count)
                row += 1

    def put(self, slot: int, value: int) -> None:
        for cache in self.kv.caches.values():
            self.card.launch(lambda at=cache.memory[:, slot // 16, slot % 16]: at.fill_(value), Cost(1))


def sequence(*blocks: int, known: int = 0, computed: int = 1) -> tuple[list[int], int, int]:
    return list(blocks), known, computed


def test_blocks_that_others_pushed_out_come_back_with_their_bytes() -> None:
    served = Served(blocks=3, late=1)
    served.run([sequence(4, 5, 6, computed=40)])
    served.run([sequence(7, 8, computed=20)])
    served.run([sequence(4, 5, 6, known=40)])
    served.run([sequence(7, 8, known=20)])
    assert (served.kv.offloaded, served.kv.brought_back) == (2 + 2 + 1, 2 + 2)
    assert served.told == []


def test_a_block_that_was_not_written_since_it_came_back_is_not_copied_again() -> None:
    served = Served(blocks=3)
    served.run([sequence(4, 5, 6, computed=40)])
    served.run([sequence(7, 8, 9, computed=40)])
    for _ in range(3):
        served.run([sequence(4, 5, 6, known=40)])
        served.run([sequence(7, 8, 9, known=40)])
    assert (served.kv.offloaded, served.kv.brought_back) == (3 + 3 + 5 * 1, 18)  # of the prefix once, then the tail


def test_a_block_that_begins_anew_is_not_brought_back() -> None:
    served = Served(blocks=3)
    served.run([sequence(4, 5, 6, computed=40)])
    served.run([sequence(7, 8, 9, computed=40)])
    served.run([sequence(4, 5, 6, computed=40)])
    assert (served.kv.offloaded, served.kv.brought_back) == (6, 0)


@pytest.mark.parametrize("late", range(6))
def test_a_step_that_was_broken_off_has_lost_nothing_that_left_for_it(late: int) -> None:
    served = Served(blocks=3, late=late)
    for known in (0, 39):  # then the first two are in RAM too
        served.run([sequence(4, 5, 6, known=known, computed=40 - known)])
        served.run([sequence(7, 8, 9, known=known, computed=40 - known)])
    served.run([sequence(4, 5, 6, known=40)])
    served.lay([sequence(7)])
    served.kv.begin(served.inputs)  # the third makes room
    before = served.kv.offloaded
    served.run([sequence(6, known=9)])
    assert served.kv.offloaded == before


def test_where_there_is_room_for_all_nothing_is_moved_or_translated() -> None:
    served = Served(blocks=16)
    before = served.card.used_bytes
    served.run([sequence(4, 5, 6, computed=40)])
    served.run([sequence(*range(7, 15), computed=60)])
    assert served.kv.tables(served.inputs.tables) is served.inputs.tables
    assert (served.kv.offloaded, served.kv.brought_back, served.card.used_bytes) == (0, 0, before)
    assert before == 16 * served.kv.block_bytes


def test_what_moves_takes_the_link_and_both_memories_their_time() -> None:
    served = Served(blocks=2)
    served.run([sequence(0, 1, computed=20)])
    served.card.synchronise()
    spec, nbytes = served.card.spec, 2 * served.kv.block_bytes
    before = served.card.now()
    served.lay([sequence(2, 3, computed=20)])
    served.kv.begin(served.inputs)
    served.kv.finish()
    took = served.card.now() - before
    numbers = spec.hop_s + 16 / spec.to_gb_s / 1e9
    gathered = 2 * spec.launch_s + spec.work_s(Cost(2 * nbytes))
    assert took == pytest.approx(numbers + gathered + spec.hop_s + nbytes / spec.from_gb_s / 1e9, rel=1e-3)


def test_a_modelled_clock_is_told_what_the_host_copies() -> None:
    """Each byte that went to RAM is read there and written."""
    times = []
    for clocked in (False, True):
        served = Served(blocks=2, clocked=clocked)
        served.run([sequence(0, 1, computed=20)])
        before = served.card.now()
        served.run([sequence(2, 3, computed=20)])
        times.append(served.card.now() - before)
    assert times[1] - times[0] == pytest.approx(2 * 2 * served.kv.block_bytes / READ_GB_S / 1e9)


@pytest.mark.parametrize("late", [None, 4])
def test_memory_that_runs_out_in_between_loses_nothing(late: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step is begun again, and goes on with what is left to do."""
    monkeypatch.setattr(kv_staging, "kv_staging_blocks", lambda block_bytes: 1)
    served = Served(blocks=4, late=late)
    served.run([sequence(0, 1, 2, 3, computed=60)])
    served.run([sequence(4, 5, 6, 7, computed=60)])
    launch = served.card.launch
    for failing in range(5):  # the tail goes, and four come
        calls = iter(range(100))

        def scarce(work: object, cost: object, calls=calls, failing=failing) -> None:  # type: ignore[no-untyped-def]
            if next(calls) == failing:
                raise DeviceMemoryError("none left")
            launch(work, cost)  # type: ignore[arg-type]

        step = [sequence(0, 1, 2, 3, known=60) if failing % 2 == 0 else sequence(4, 5, 6, 7, known=60)]
        served.lay(step)
        with monkeypatch.context() as patch:
            patch.setattr(served.card, "launch", scarce)
            with pytest.raises(DeviceMemoryError):
                served.kv.begin(served.inputs)
            served.kv.check_integrity(range(8))
        served.run(step)
    assert served.told == []


@pytest.mark.parametrize("kind", ["copy", "launch", "hang"])
@pytest.mark.parametrize("late", [None, 4])
def test_a_copy_that_fails_is_told_and_loses_the_device(kind: str, late: int | None) -> None:
    served = Served(blocks=3, late=late)
    served.run([sequence(4, 5, 6, computed=40)])
    served.card.faults.fail(kind)  # type: ignore[arg-type]
    served.lay([sequence(7, 8, computed=20)])
    with pytest.raises(DeviceLostError, match="emulated:0"):
        served.kv.begin(served.inputs)
        served.kv.finish()
    ((name, detail),) = served.told
    assert name == "kv_offload_failed" and "keys and values on emulated:0 are lost" in detail


@st.composite
def traffic(draw: st.DrawFn) -> tuple[int, int, list[tuple[int, bool, int]]]:
    """Blocks of the accelerator; how many go at once; in each step a number of a sequence, whether it begins again,
    and how many tokens it computes."""
    one = st.tuples(st.integers(0, 4), st.booleans(), st.integers(1, 20))
    return draw(st.integers(3, 8)), draw(st.integers(1, 4)), draw(st.lists(one, max_size=20))


@settings(max_examples=60)
@given(case=traffic(), late=st.integers(0, 9))
def test_any_traffic_finds_its_bytes(case: tuple[int, int, list[tuple[int, bool, int]]], late: int) -> None:
    pool, batch, steps = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_staging, "kv_staging_blocks", lambda block_bytes: batch)
        served = Served(pool, late=late)
    known = [0] * 5
    for number, again, count in steps:
        known[number] = 0 if again else known[number]
        count = min(count, 48 - known[number])
        if count:
            end = known[number] + count
            served.run([(list(range(3 * number, 3 * number + -(-end // 16))), known[number], count)])
            known[number] = end
        served.kv.check_integrity(3 * n + block for n, end in enumerate(known) for block in range(-(-end // 16)))
    assert torch.is_tensor(served.kv.caches[0].memory) and served.told == []
