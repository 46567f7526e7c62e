"""The checksum of the packed store: it is what its definition says, and damage shows in it."""

import numpy as np
import pytest
from isotherm.cpu_kernels.checksum import FACTOR, LANES, checksum

WORDS = [1, LANES - 1, LANES, LANES + 1, 5 * LANES + 3]


def noise(words: int) -> np.ndarray:
    return np.random.default_rng(words).integers(0, 256, 8 * words, np.uint8)


def step(total: int, word: int) -> int:
    product = (total ^ word) * FACTOR % 2**64
    return product ^ product >> 32


def definition(memory: np.ndarray) -> int:
    words = [int.from_bytes(memory[at : at + 8].tobytes(), "little") for at in range(0, len(memory), 8)]
    total = len(words)
    for lane in range(LANES):
        mixed = 0
        for word in words[lane::LANES]:
            mixed = step(mixed, word)
        total = step(total, mixed)
    return total


@pytest.mark.parametrize("words", [0, *WORDS])
def test_it_follows_its_definition(words: int) -> None:
    memory = noise(words)
    assert checksum(memory) == definition(memory)


@pytest.mark.parametrize("words", WORDS)
def test_each_bit_counts(words: int) -> None:
    memory = noise(words)
    sums = {checksum(memory)}
    for bit in range(0, 64 * words, 7):
        memory[bit // 8] ^= 1 << bit % 8
        sums.add(checksum(memory))
        memory[bit // 8] ^= 1 << bit % 8
    assert len(sums) == 1 + len(range(0, 64 * words, 7))


@pytest.mark.parametrize("apart", [1, LANES])
def test_the_order_of_words_counts(apart: int) -> None:
    memory = noise(3 * LANES)
    words = memory.view(np.uint64).copy()
    words[[0, apart]] = words[[apart, 0]]
    assert checksum(words.view(np.uint8)) != checksum(memory)


def test_the_highest_bits_of_a_lane_do_not_cancel() -> None:
    memory = noise(3 * LANES)
    words = memory.view(np.uint64).copy()
    words[[5, 5 + LANES]] ^= np.uint64(1 << 63)
    assert checksum(words.view(np.uint8)) != checksum(memory)


def test_a_block_of_zeros_that_is_missing_at_the_end_shows() -> None:
    memory = np.zeros(16 * LANES, np.uint8)
    assert checksum(memory[: 8 * LANES]) != checksum(memory)


def test_memory_that_cannot_be_written_has_the_same_sum() -> None:
    memory = noise(LANES)
    before = checksum(memory)
    memory.flags.writeable = False
    assert checksum(memory) == before
