"""Fit or refuse: the numbers, and changes that are checked to do what they promise."""

import re
from dataclasses import replace

import pytest
from isotherm.placement.room import Alternative, FitError, Room, check_fit, needed
from support.plans import GIB, MIB, large

WEIGHTS = large().nbytes  # 3.375 GiB, and 16 KiB a position
KV = 16 << 10


def refusal(room: Room, streams: int, context: int, *alternatives: Alternative) -> str:
    with pytest.raises(FitError) as caught:
        check_fit(large(), room, streams, context, alternatives)
    return str(caught.value)


def test_what_fits_to_the_byte_is_taken_and_one_less_is_refused() -> None:
    size = WEIGHTS + 2 * 1024 * KV
    check_fit(large(), Room(ram=size), 2, 1024)
    check_fit(large(), Room(ram=GIB, vram=(size - GIB,)), 2, 1024)
    refusal(Room(ram=size - 1), 2, 1024)


def test_a_context_that_is_promised_fits_and_a_page_more_does_not() -> None:
    room = Room(ram=WEIGHTS + 100 * MIB)
    text = refusal(room, 4, 32768)
    context = int(re.search(r"--context (\d+)", text)[1])
    assert needed(large(), 4, context) <= room.total < needed(large(), 4, context + 16)


def test_fewer_streams_are_offered_where_they_would_do() -> None:
    text = refusal(Room(ram=WEIGHTS + 100 * MIB), 8, 2048)
    assert "--streams 3" in text  # of 32 MiB each
    assert "--streams" not in refusal(Room(ram=WEIGHTS + 30 * MIB), 8, 2048)


def test_other_forms_are_offered_where_they_would_do() -> None:
    small = replace(large(), layers=large().layers[:3])
    options = Alternative("--format q4_0", small), Alternative("--kv-cache int8", large())
    text = refusal(Room(ram=3 * GIB), 1, 1024, *options)
    assert "any of these would fit: --format q4_0, or 0.39 GiB more" in text
    assert "int8" not in text


def test_numbers_of_all_memories_are_told() -> None:
    text = refusal(Room(ram=GIB, vram=(GIB, GIB)), 1, 1024)
    assert "large needs 3.38 GiB for its weights and 0.02 GiB for the KV cache of one stream of 1024 tokens" in text
    assert "3.00 GiB of RAM (1.00 GiB) and accelerators (2.00 GiB) can be used; 0.39 GiB more" in text


def test_a_memory_that_is_overdrawn_gives_nothing_to_others() -> None:
    assert Room(ram=-GIB, vram=(2 * GIB,)).total == 2 * GIB
