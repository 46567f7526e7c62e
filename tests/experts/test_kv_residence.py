"""The books of a pool of KV blocks against a model that moves values: what a step reads is what was last written."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isotherm.experts.kv_residence import KvResidence

Step = list[tuple[int, bool, bool]]  # blocks in a sequence's order: the number, whether new, whether written


class Model:
    """A pool and RAM that hold the values which the books say they do. order: of use, the coldest first."""

    def __init__(self, num_blocks: int, pool: int) -> None:
        self.books = KvResidence(num_blocks, pool)
        self.pool: dict[int, int] = {}
        self.ram: dict[int, int] = {}
        self.values: dict[int, int] = {}  # by logical block, what was written last
        self.order: list[int] = []
        self.moves = 0

    def run(self, step: Step) -> None:
        """Blocks without a value count as new, new ones are written."""
        step = [(block, new or block not in self.values, written) for block, new, written in step]
        blocks = np.array([block for block, _, _ in step])
        held = np.array([not new for _, new, _ in step])
        for block in blocks[~held]:
            self.values.pop(int(block), None)
        for block in blocks.tolist():
            if block in self.order:
                self.order.remove(block)
        for block in self.books.begin(blocks, np.arange(len(step)), held).tolist():
            self.admit(block)
        self.order += blocks[::-1].tolist()
        places = self.books.places(blocks).tolist()
        assert len(set(places)) == len(places)
        for (block, new, written), place in zip(step, places, strict=True):
            if not new:
                assert self.pool[place] == self.values[block]
            if new or written:
                self.pool[place] = self.values[block] = self.values.get(block, 0) + 1 + 1000 * self.moves
        self.books.write(np.array([block for block, new, written in step if new or written], np.int64))
        self.books.check_integrity(self.values)

    def admit(self, block: int) -> None:
        one = np.array([block])
        if not self.books.num_free:
            cold = self.books.coldest(1)
            assert int(cold[0]) == self.coldest()
            if not self.books.is_saved(cold)[0]:
                self.ram[int(cold[0])] = self.pool[int(self.books.places(cold)[0])]
                self.moves += 1
            self.books.evict(cold)
            assert self.values.get(int(cold[0])) in (None, self.ram[int(cold[0])])
        (place,) = self.books.take(1).tolist()
        if self.books.is_saved(one)[0]:
            self.pool[place] = self.ram[block]
        self.books.admit(one)
        assert self.books.places(one).tolist() == [place]

    def coldest(self) -> int:
        resident = [block for block in self.order if self.books._at[block] >= 0]
        return resident[0]


@st.composite
def steps(draw: st.DrawFn) -> tuple[int, int, list[Step]]:
    num_blocks = draw(st.integers(2, 12))
    pool = draw(st.integers(1, num_blocks - 1))
    blocks = st.lists(st.integers(0, num_blocks - 1), min_size=1, max_size=pool, unique=True)
    step = blocks.flatmap(lambda them: st.tuples(*(st.tuples(st.just(n), st.booleans(), st.booleans()) for n in them)))
    return num_blocks, pool, [list(one) for one in draw(st.lists(step, max_size=25))]


@settings(max_examples=300)
@given(case=steps())
def test_every_step_finds_what_earlier_ones_wrote(case: tuple[int, int, list[Step]]) -> None:
    num_blocks, pool, all_steps = case
    model = Model(num_blocks, pool)
    for step in all_steps:
        model.run(step)


def resident(books: KvResidence, *blocks: int) -> None:
    """Have blocks, each written once, in the pool."""
    those = np.array(blocks)
    away = books.begin(those, np.arange(len(blocks)), np.zeros(len(blocks), np.bool_))
    books.admit(away)
    books.write(those)


def read(books: KvResidence, *blocks: int) -> list[int]:
    """Begin a step that reads blocks; those that are away."""
    return books.begin(np.array(blocks), np.arange(len(blocks)), np.ones(len(blocks), np.bool_)).tolist()


def test_the_tail_of_a_sequence_is_colder_than_its_head() -> None:
    books = KvResidence(9, 5)
    resident(books, 3, 1, 2)
    resident(books, 0)
    assert books.coldest(3).tolist() == [2, 1, 3]


def test_what_was_not_written_since_it_was_saved_is_saved_still() -> None:
    books = KvResidence(9, 2)
    resident(books, 0, 1)
    books.evict(np.array([0, 1]))
    books.admit(np.array(read(books, 0, 1)))
    assert books.is_saved(np.array([0, 1])).all()
    books.write(np.array([1]))
    assert books.is_saved(np.array([0, 1])).tolist() == [True, False]


def test_a_step_that_is_begun_again_misses_only_what_was_not_admitted() -> None:
    books = KvResidence(9, 4)
    resident(books, 0, 1, 2, 3)
    books.evict(np.array([0, 1]))
    assert read(books, 0, 1, 2) == [0, 1]
    books.admit(np.array([0]))
    assert read(books, 0, 1, 2) == [1]


def test_a_step_that_uses_more_than_the_pool_is_refused() -> None:
    books = KvResidence(9, 2)
    resident(books, 0, 1)
    assert read(books, 0, 1) == []
    with pytest.raises(RuntimeError, match="more KV blocks at once than the 2 of an accelerator"):
        books.coldest(1)


def test_a_block_that_is_nowhere_is_not_read() -> None:
    books = KvResidence(9, 2)
    with pytest.raises(RuntimeError, match=r"KV blocks \[5\] are neither on the accelerator nor in RAM"):
        read(books, 5)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda books: books._holds.__setitem__(int(books._at[1]), 4), r"blocks \[1\] reside where others do"),
        (lambda books: books._at.__setitem__(4, int(books._at[1])), r"blocks \[4\] reside where others do"),
        (lambda books: books._free.pop(), r"blocks \[3\] of the pool are free, but \[2, 3\] hold nothing"),
        (lambda books: books._saved.__setitem__(0, False), r"blocks \[0\] are neither resident nor saved"),
    ],
    ids=["held otherwise", "two at one place", "lost place", "lost block"],
)
def test_books_that_are_wrong_are_noticed(change: object, told: str) -> None:
    books = KvResidence(9, 4)
    resident(books, 0, 1, 2)
    books.evict(np.array([0]))
    books.check_integrity([0, 1, 2])
    change(books)  # type: ignore[operator]
    with pytest.raises(RuntimeError, match=told):
        books.check_integrity([0, 1, 2])
