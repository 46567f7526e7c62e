"""What `isotherm status` says of several models."""

from typing import Any

from isotherm.daemon.cli.fleet_rows import fleet_rows

COLD: dict[str, Any] = {
    "id": "a",
    "state": "cold",
    "reason": "",
    "retry_s": None,
    "requests": 0,
    "waiting": 0,
    "idle_s": None,
    "unloads_in_s": None,
    "loading": None,
    "loads": 0,
    "bytes": 0,
}


def test_each_model_has_a_row() -> None:
    loading = {"id": "b", "state": "loading", "waiting": 2, "loading": {"stage": "packing", "done": 1, "total": 4}}
    failed = {"id": "c", "state": "failed", "reason": "its file is cut", "retry_s": 12.4}
    idle = {"id": "d", "state": "ready", "bytes": 3 << 30, "unloads_in_s": 59.6}
    rows = list(fleet_rows([COLD, COLD | loading, COLD | failed, COLD | idle]))
    assert [text for _, text in rows] == [
        "a: not loaded",
        "b: loading, packing 25%, 2 waiting for it",
        "c: failed, its file is cut; tried again in 12 s",
        "d: ready, 3.00 GiB, unloaded in 60 s",
    ]


def test_one_model_needs_no_rows_of_its_own() -> None:
    assert list(fleet_rows([COLD])) == []
