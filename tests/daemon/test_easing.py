"""What is given up while memory is short, on a tiny model: memory comes back, and answers stay the same."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from isotherm.daemon.config import Config
from isotherm.daemon.errors import OverloadedError
from isotherm.daemon.events import EventLog
from isotherm.daemon.fleet.easing import LONGEST_PROMPT, measures_of
from isotherm.daemon.fleet.fleet import Fleet
from isotherm.daemon.fleet.host import Hosted, ModelLoader
from isotherm.daemon.kv_cache import BlockPool, BlockTable
from isotherm.daemon.messages import FromEngine
from isotherm.daemon.unused_prefixes import DropPrefixes
from isotherm.experts.memory import arena, drop
from support import tiny
from support.engine_runs import messages_of, until
from support.serving import make_submit

MIB = 1 << 20


@pytest.fixture
def fleet(tmp_path: Path, own_folders: None, thawed: None) -> Iterator[Fleet[Any]]:
    path = tmp_path / "tiny.gguf"
    tiny.write_gguf(path, "mixtral", "Q4_0", max_position_embeddings=4096)
    config = Config(model=path, threads=2, kv_gib=0.1, context=4096, pack_cache=False)
    loader = ModelLoader({"tiny": config}, EventLog(), lambda name, assembly: name)
    fleet: Fleet[Any] = Fleet(("tiny",), loader, EventLog())
    fleet.adopt("tiny", loader.load("tiny", lambda stage, done, total: None))
    yield fleet
    fleet.close()


def the_one(fleet: Fleet[Any]) -> Hosted[Any]:
    hosted: Hosted[Any] = fleet.find("tiny")
    return hosted


def ask(fleet: Fleet[Any], name: str, length: int = 100) -> list[FromEngine]:
    prompt = [1 + number % 50 for number in range(length)]
    return messages_of(the_one(fleet).assembly.engine.client.submit(make_submit(name, prompt, max_tokens=4)))


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


def test_unused_prefixes_are_forgotten_and_their_memory_comes_back(fleet: Fleet[Any]) -> None:
    assembly = the_one(fleet).assembly
    before = ask(fleet, "a")
    assembly.runner.fill_cache()
    again = ask(fleet, "a")
    full = resident()
    told = assembly.engine.client.ask(DropPrefixes()).result(20)
    assert told["forgotten_blocks"] > 0
    assert told["dropped_bytes"] > 0.8 * assembly.kv_bytes
    assert full - resident() > 0.8 * assembly.kv_bytes
    assert ask(fleet, "a") == before
    del again
    until(lambda: not assembly.engine.stats().busy)
    assert assembly.engine.stats().audit_failures == 0


def test_all_measures_are_taken_and_long_prompts_come_back_at_last(fleet: Fleet[Any]) -> None:
    measures = measures_of(fleet)
    for measure in measures:
        measure.act()
    with pytest.raises(OverloadedError, match="memory is short") as caught:
        ask(fleet, "long", LONGEST_PROMPT + 1)
    assert caught.value.retry_after > 0
    assert len(ask(fleet, "short", LONGEST_PROMPT)) == 5
    assert the_one(fleet) is not None  # the last one used stays
    for measure in measures:
        measure.undo()
    assert len(ask(fleet, "long", LONGEST_PROMPT + 1)) == 5


def test_blocks_in_use_keep_what_they_hold() -> None:
    pool = BlockPool(8, 4)
    used, left = BlockTable(list(range(8)), ""), BlockTable(list(range(100, 108)), "")
    for table in (used, left):
        assert pool.open(table, [], 8)
        pool.register(table, 8)
    pool.release(left)
    assert pool.forget_unused() == sorted(set(range(8)) - set(used.blocks))
    pool.check_integrity([used])
    assert pool.match_prefix(BlockTable([*range(8), 9], "")) == used.blocks
    assert pool.match_prefix(BlockTable([*range(100, 108), 9], "")) == []


def test_memory_that_is_dropped_is_zeros_and_its_neighbours_are_not() -> None:
    memory = arena(4 * MIB)
    memory[:] = 7
    assert drop(memory[100 : 2 * MIB]) == 2 * MIB - 4096
    assert set(np.unique(memory[4096 : 2 * MIB])) == {0}
    assert set(np.unique(memory[:4096])) == set(np.unique(memory[2 * MIB :])) == {7}
    assert drop(memory[10:20]) == 0
