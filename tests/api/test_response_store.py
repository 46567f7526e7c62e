"""The bounds of what /v1/responses keeps."""

from typing import Any

import pytest
from isotherm.api.errors import UnknownResponseError
from isotherm.api.responses.store import PreviousResponseError, ResponseStore, Stored


def stored(name: str, text: str = "") -> Stored:
    return Stored(
        {"id": name, "output": [{"type": "message", "text": text}]}, ({"type": "message", "id": f"in {name}"},)
    )


def held(store: ResponseStore, *names: str) -> list[str]:
    def is_there(name: str) -> bool:
        try:
            store.get("t", name)
        except UnknownResponseError:
            return False
        return True

    return [name for name in names if is_there(name)]


def test_the_number_is_bounded_and_the_least_used_goes_first() -> None:
    store = ResponseStore(2, 10_000)
    store.put("t", stored("a"))
    store.put("t", stored("b"))
    store.get("t", "a")
    store.put("t", stored("c"))
    assert held(store, "a", "b", "c") == ["a", "c"]


def test_the_bytes_are_bounded() -> None:
    store = ResponseStore(100, 2500)
    for name in "abc":
        store.put("t", stored(name, "x" * 1000))
    assert held(store, "a", "b", "c") == ["b", "c"]


def test_what_is_deleted_frees_its_bytes() -> None:
    store = ResponseStore(100, 2500)
    store.put("t", stored("a", "x" * 1000))
    store.put("t", stored("b", "x" * 1000))
    store.delete("t", "a")
    store.put("t", stored("c", "x" * 1000))
    assert held(store, "a", "b", "c") == ["b", "c"]


def test_one_that_is_too_large_drives_no_other_out() -> None:
    store = ResponseStore(100, 1000)
    store.put("t", stored("a"))
    store.put("t", stored("b", "x" * 2000))
    assert held(store, "a", "b") == ["a"]


def test_what_goes_on_begins_with_all_that_was() -> None:
    store = ResponseStore(2, 10_000)
    store.put("t", stored("a", "hi"))
    items: list[Any] = list(store.items_before("t", "a"))
    assert items == [{"type": "message", "id": "in a"}, {"type": "message", "text": "hi"}]
    assert store.items_before("t", None) == ()
    with pytest.raises(PreviousResponseError, match="'b'"):
        store.items_before("t", "b")
    with pytest.raises(PreviousResponseError):
        store.items_before("another", "a")
