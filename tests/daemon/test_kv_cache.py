import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from isotherm.daemon.kv_cache import BlockPool, BlockTable

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=9)


def filled(pool: BlockPool, tokens: list[int], salt: str = "") -> BlockTable:
    """A table whose tokens are all computed and registered."""
    table = BlockTable(list(tokens), salt)
    assert pool.open(table, pool.match_prefix(table), len(tokens))
    pool.register(table, len(tokens))
    return table


def num_hits(pool: BlockPool, tokens: list[int], salt: str = "") -> int:
    return len(pool.match_prefix(BlockTable(list(tokens), salt)))


def test_a_released_prefix_is_found_again() -> None:
    pool = BlockPool(8, 2)
    table = filled(pool, [1, 2, 3, 4, 5])
    blocks = table.blocks[:2]
    pool.release(table)
    assert pool.match_prefix(BlockTable([1, 2, 3, 4, 9], "")) == blocks


def test_what_is_forgotten_is_not_found_again() -> None:
    pool = BlockPool(8, 2)
    table = filled(pool, [1, 2, 3, 4, 5])
    with pytest.raises(RuntimeError, match="3 blocks are in use and cannot be forgotten"):
        pool.forget()
    pool.release(table)
    assert num_hits(pool, [1, 2, 3, 4, 5]) > 0
    pool.forget()
    assert num_hits(pool, [1, 2, 3, 4, 5]) == 0 and pool.num_cached == 0
    pool.check_integrity([])


def test_at_least_one_token_of_a_known_prompt_is_computed() -> None:
    """[74]"""
    pool = BlockPool(8, 2)
    filled(pool, [1, 2, 3, 4])
    assert [num_hits(pool, [1, 2, 3, 4][:n]) for n in range(1, 5)] == [0, 0, 1, 1]
    assert num_hits(pool, [1, 2, 3, 4, 5]) == 2


def test_only_computed_full_blocks_are_registered() -> None:
    pool = BlockPool(8, 2)
    table = BlockTable([1, 2, 3, 4, 5, 6], "")
    pool.open(table, [], 6)
    pool.register(table, 3)
    assert num_hits(pool, [1, 2, 3, 4, 5, 6]) == 1


def test_a_block_is_not_found_after_another_prefix() -> None:
    pool = BlockPool(8, 2)
    filled(pool, [1, 2, 3, 4])
    assert num_hits(pool, [9, 9, 3, 4, 5]) == 0
    assert num_hits(pool, [3, 4, 5]) == 0


def test_salts_separate_caches() -> None:
    """[44, 46]"""
    pool = BlockPool(8, 2)
    filled(pool, [1, 2, 3], salt="alice")
    assert num_hits(pool, [1, 2, 3], salt="bob") == 0
    assert num_hits(pool, [1, 2, 3], salt="alice") == 1


def test_equal_prompts_of_two_salts_are_cached_side_by_side() -> None:
    pool = BlockPool(8, 2)
    filled(pool, [1, 2, 3], salt="alice")
    filled(pool, [1, 2, 3], salt="bob")
    assert num_hits(pool, [1, 2, 3], salt="alice") == num_hits(pool, [1, 2, 3], salt="bob") == 1


def test_colliding_hashes_do_not_mix_prefixes() -> None:
    """[45, 47]"""
    pool = BlockPool(8, 2, digest=lambda _: b"same")
    filled(pool, [1, 1, 2, 2], salt="alice")
    assert num_hits(pool, [2, 2, 1, 1, 5], salt="alice") == 0
    assert num_hits(pool, [1, 1, 5], salt="bob") == 0
    assert num_hits(pool, [1, 1, 1, 1, 5], salt="alice") == 1  # the same block is not its own successor


def test_a_tail_is_evicted_before_its_head() -> None:
    pool = BlockPool(4, 2)
    pool.release(filled(pool, [1, 2, 3, 4, 5, 6, 7, 8]))
    filled(pool, [9, 9, 9, 9])
    assert num_hits(pool, [1, 2, 3, 4, 5, 6, 7, 8, 9]) == 2


def test_the_least_recently_used_prefix_is_evicted_first() -> None:
    pool = BlockPool(3, 2)
    for tokens in ([1, 1], [2, 2], [3, 3]):
        pool.release(filled(pool, tokens))
    pool.release(filled(pool, [1, 1]))  # an exchange for the known block: used again
    filled(pool, [4, 4])
    assert [num_hits(pool, [n, n, 0]) for n in (1, 2, 3)] == [1, 0, 1]


def test_blocks_without_reusable_content_are_taken_before_cached_ones() -> None:
    pool = BlockPool(3, 2)
    pool.release(filled(pool, [1, 1]))
    pool.release(filled(pool, [2]))
    filled(pool, [3, 3, 4, 4])
    assert num_hits(pool, [1, 1, 0]) == 1
    assert pool.num_evictions == 0


def test_equal_blocks_computed_at_the_same_time_become_one() -> None:
    pool = BlockPool(4, 2)
    first, second = BlockTable([1, 2], ""), BlockTable([1, 2], "")
    pool.open(first, [], 2)
    pool.open(second, [], 2)
    pool.register(first, 2)
    pool.register(second, 2)
    assert first.blocks == second.blocks
    assert pool.num_free == 3
    pool.check_integrity([first, second])


def test_too_few_blocks_take_nothing() -> None:
    pool = BlockPool(2, 2)
    table = BlockTable([1, 2, 3, 4, 5], "")
    assert not pool.open(table, [], 5)
    assert pool.open(table, [], 4)
    assert not pool.extend(table, 5)
    assert len(table.blocks) == 2
    pool.check_integrity([table])


def test_hits_that_nobody_uses_count_as_needed() -> None:
    pool = BlockPool(4, 2)
    pool.release(filled(pool, [1, 2, 3, 4]))
    other = filled(pool, [7, 7])
    table = BlockTable([1, 2, 3, 4, 5, 6, 7], "")
    hits = pool.match_prefix(table)
    assert len(hits) == 2
    assert not pool.open(table, hits, 7)
    pool.release(other)
    assert pool.open(table, hits, 7)


def test_hits_that_others_use_cost_nothing() -> None:
    pool = BlockPool(3, 2)
    filled(pool, [1, 2, 3, 4])
    table = BlockTable([1, 2, 3, 4, 5], "")
    assert pool.open(table, pool.match_prefix(table), 5)
    assert pool.num_free == 0


def test_a_block_is_coming_when_another_table_knows_all_of_it() -> None:
    pool = BlockPool(8, 2)
    other = BlockTable([1, 2, 3], "")
    assert pool.is_coming(BlockTable([1, 2, 9], ""), 0, other)
    assert not pool.is_coming(BlockTable([9, 2, 9], ""), 0, other)
    assert not pool.is_coming(BlockTable([1, 2], ""), 0, other)  # it could not be a hit
    longer = BlockTable([1, 2, 3, 4, 5], "")
    assert not pool.is_coming(longer, 1, other)
    other.tokens.append(4)
    assert pool.is_coming(longer, 1, other)


def test_counters_are_in_tokens() -> None:
    pool = BlockPool(8, 2)
    filled(pool, [1, 2, 3, 4, 5])
    filled(pool, [1, 2, 3, 4, 9])
    assert (pool.num_queried_tokens, pool.num_hit_tokens) == (10, 4)


def test_the_audit_names_a_leaked_block() -> None:
    pool = BlockPool(4, 2)
    filled(pool, [1, 2])
    with pytest.raises(RuntimeError, match=r"block 0 has 1 references but 0 owners"):
        pool.check_integrity([])


def test_an_open_table_is_not_opened_twice() -> None:
    pool = BlockPool(4, 2)
    table = filled(pool, [1, 2])
    with pytest.raises(RuntimeError, match="already holds 1 blocks"):
        pool.open(table, [], 2)


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 2), (2, 0), (-1, 2)])
def test_an_empty_pool_is_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match="both must be positive"):
        BlockPool(num_blocks, block_size)


@pytest.mark.parametrize("num_resident", [0, 5])
def test_no_more_can_be_in_use_than_there_are(num_resident: int) -> None:
    with pytest.raises(ValueError, match=f"of 4 blocks {num_resident} cannot be in use at once; 1 to 4 can"):
        BlockPool(4, 2, num_resident=num_resident)


def test_cached_blocks_without_users_may_be_more_than_can_be_in_use() -> None:
    pool = BlockPool(6, 2, num_resident=2)
    for prompt in ([1, 2, 3, 4], [5, 6, 7, 8], [9, 9, 9, 9]):
        pool.release(filled(pool, prompt))
    assert pool.num_cached == 6 and len(set(pool.cached_blocks)) == 6
    first, second = BlockTable([1, 2, 3], ""), BlockTable([5, 6, 7], "")
    assert pool.open(first, pool.match_prefix(first), 3)
    assert pool.num_free == 0 and not pool.open(second, pool.match_prefix(second), 3)
    pool.check_integrity([first])
    pool.release(first)
    assert pool.open(second, pool.match_prefix(second), 3)


class PoolMachine(RuleBasedStateMachine):
    """[43, 45, 47] The oracle knows the whole prefix that was written to each block; hits must find just that there."""

    @initialize(
        num_blocks=st.integers(1, 10), block_size=st.integers(1, 3), colliding=st.booleans(), away=st.integers(0, 9)
    )
    def start(self, num_blocks: int, block_size: int, colliding: bool, away: int) -> None:
        digest = {"digest": lambda data: data[-8:]} if colliding else {}
        self.pool = BlockPool(num_blocks, block_size, **digest, num_resident=max(num_blocks - away, 1))
        self.contents: dict[int, tuple[str, list[int]]] = {}
        self.tables: list[BlockTable] = []

    def prefix(self, table: BlockTable, i: int) -> tuple[str, list[int]]:
        return table.salt, table.tokens[: (i + 1) * self.pool.block_size]

    def write(self, table: BlockTable, start: int) -> None:
        for i in range(start // self.pool.block_size, len(table.blocks)):
            self.contents[table.blocks[i]] = self.prefix(table, i)

    @rule(tokens=TOKENS, salt=st.sampled_from("ab"))
    def open(self, tokens: list[int], salt: str) -> None:
        table = BlockTable(tokens, salt)
        hits = self.pool.match_prefix(table)
        assert len(hits) * self.pool.block_size < len(tokens)
        for i, block in enumerate(hits):
            assert self.contents[block] == self.prefix(table, i)
        needed, free = self.pool.num_needed(len(tokens), hits), self.pool.num_free
        assert self.pool.open(table, hits, len(tokens)) == (needed <= free)
        if table.blocks:
            self.tables.append(table)
            self.write(table, len(hits) * self.pool.block_size)

    @rule(data=st.data(), tokens=TOKENS)
    def extend(self, data: st.DataObject, tokens: list[int]) -> None:
        table = self.pick(data)
        if table is not None and self.pool.extend(table, len(table.tokens) + len(tokens)):
            start = len(table.tokens)
            table.tokens.extend(tokens)
            self.write(table, start)

    @rule(data=st.data())
    def register(self, data: st.DataObject) -> None:
        table = self.pick(data)
        if table is not None:
            self.pool.register(table, len(table.tokens))
            for i in range(table.num_registered):
                assert self.contents[table.blocks[i]] == self.prefix(table, i)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        table = self.pick(data)
        if table is not None:
            self.pool.release(table)
            self.tables.remove(table)

    @invariant()
    def books_agree(self) -> None:
        if hasattr(self, "pool"):
            self.pool.check_integrity(self.tables)
            assert len({block for table in self.tables for block in table.blocks}) <= self.pool.num_resident

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            for table in self.tables:
                self.pool.release(table)
            self.pool.check_integrity([])
            assert self.pool.num_free == self.pool.num_resident

    def pick(self, data: st.DataObject) -> BlockTable | None:
        return data.draw(st.sampled_from(self.tables)) if self.tables else None


PoolMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestPool = PoolMachine.TestCase
