"""RAM of experts on accelerators: whole pages of a file go back, those that anybody needs stay, and nothing is lost."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from isotherm.experts.memory import arena
from isotherm.experts.pack import PackedWeights
from isotherm.experts.page_cache import PageCache
from isotherm.experts.residency import Residency
from isotherm.gpu_kernels.device import DeviceLostError
from isotherm.gpu_kernels.emulated import Emulated
from numpy.typing import NDArray
from support.expert_weights import EXPERTS, SIZE, expert_weights
from support.hybrid import emulated, swap
from support.mapped_arena import PAGE, map_bytes, mapped_pages, small_pages

SIZE_OF_ALL = 6 * PAGE + 100


@pytest.fixture(autouse=True)
def pages(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pages(monkeypatch)


@pytest.fixture
def content() -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, SIZE_OF_ALL).astype(np.uint8)


@pytest.fixture
def memory(tmp_path: Path, content: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """All of it has been looked at."""
    found = map_bytes(tmp_path / "file", content)
    assert np.array_equal(found, content) and all(mapped_pages(found))
    return found


def test_only_whole_pages_go_back(memory: NDArray[np.uint8], content: NDArray[np.uint8]) -> None:
    cache = PageCache(memory)
    cache.give_back([(PAGE - 1, 2 * PAGE), (4 * PAGE, PAGE)])
    assert mapped_pages(memory) == [True, False, True, True, False, True, True]
    assert cache.given_back_bytes == 2 * PAGE
    np.testing.assert_array_equal(memory, content)


def test_a_page_goes_back_once_all_who_share_it_have_left(memory: NDArray[np.uint8]) -> None:
    cache = PageCache(memory)
    cache.give_back([(PAGE, 1000)])
    assert cache.given_back_bytes == 0 and all(mapped_pages(memory))
    cache.give_back([(PAGE + 1000, PAGE - 1000)])
    assert cache.given_back_bytes == PAGE and not mapped_pages(memory)[1]


def test_the_last_page_need_not_be_whole(memory: NDArray[np.uint8]) -> None:
    cache = PageCache(memory)
    cache.give_back([(6 * PAGE, 100)])
    assert cache.given_back_bytes == 100 and mapped_pages(memory)[5:] == [True, False]


def test_what_is_needed_again_is_there(memory: NDArray[np.uint8], content: NDArray[np.uint8]) -> None:
    cache, places = PageCache(memory), [(0, 3 * PAGE)]
    cache.give_back(places)
    cache.take_back([(PAGE, 10)])
    assert cache.given_back_bytes == 2 * PAGE
    cache.give_back([(PAGE, 10)])
    cache.take_back(places)
    assert cache.given_back_bytes == 0
    np.testing.assert_array_equal(memory, content)


def test_memory_without_a_file_stays(content: NDArray[np.uint8]) -> None:
    own = arena(1 << 22)
    own[: content.nbytes] = content
    cache = PageCache(own)
    cache.give_back([(0, own.nbytes)])
    assert cache.given_back_bytes == 0
    np.testing.assert_array_equal(own[: content.nbytes], content)


@pytest.fixture
def weights(tmp_path: Path) -> PackedWeights:
    return expert_weights((0,), lambda content: map_bytes(tmp_path / "weights", content))


@pytest.fixture
def accelerators() -> tuple[Emulated, ...]:
    return emulated(1 << 20, late=1)


@pytest.fixture
def residency(weights: PackedWeights, accelerators: tuple[Emulated, ...]) -> Iterator[Residency]:
    """All experts but the last are on the first accelerator; experts lie one after the other, by part."""
    made = Residency(weights, 1, accelerators)
    made.reserve(0, 0, EXPERTS - 1)
    for expert in range(EXPERTS - 1):
        made.load(0, expert, 0)
    yield made
    made.check_integrity()
    made.close()
    assert made.given_back_bytes == 0


def free_of(*kept: int) -> int:
    """Bytes in pages of the arena where none of these experts has any."""
    needed = np.zeros(3 * EXPERTS * SIZE, np.bool_)
    for matrix in range(3 * EXPERTS):
        needed[matrix * SIZE : (matrix + 1) * SIZE] = matrix % EXPERTS in kept
    return sum(len(page) for page in np.split(needed, range(PAGE, len(needed), PAGE)) if not page.any())


def test_experts_give_back_what_they_took_once_they_have_settled(residency: Residency) -> None:
    assert residency.given_back_bytes == 0
    residency.settle(wait=True)
    assert residency.given_back_bytes == free_of(EXPERTS - 1) > 0


def test_an_expert_that_is_evicted_needs_it_again(residency: Residency) -> None:
    residency.settle(wait=True)
    residency.evict(0, 0)
    assert residency.given_back_bytes == free_of(0, EXPERTS - 1)
    residency.load(0, EXPERTS - 1, 0)
    residency.settle(wait=True)
    assert residency.given_back_bytes == free_of(0)
    residency.swap([swap(0, 0, promoted=0, demoted=1)])
    assert residency.given_back_bytes == free_of(0, 1)
    residency.settle(wait=True)
    assert residency.given_back_bytes == free_of(1)


@pytest.mark.parametrize("way", ["free", "drop"])
def test_what_leaves_an_accelerator_needs_it_again(way: str, residency: Residency) -> None:
    residency.settle(wait=True)
    if way == "free":
        residency.free(0, 0)
    else:
        residency.drop(0)
    assert residency.given_back_bytes == 0


def test_a_copy_that_fails_gives_nothing_back(residency: Residency, accelerators: tuple[Emulated, ...]) -> None:
    residency.settle(wait=True)
    residency.evict(0, 2)
    accelerators[0].faults.fail("copy", after=1)
    residency.load(0, 2, 0)
    with pytest.raises(DeviceLostError):
        residency.settle(wait=True)
    accelerators[0].reset()
    assert residency.given_back_bytes == free_of(2, EXPERTS - 1)
