"""GET /admin/placement and POST /admin/vram, on engines that are played."""

import asyncio
from typing import Any

import pytest
from isotherm.api.accelerators import answered
from isotherm.daemon.errors import EngineError, InvalidRequestError
from isotherm.daemon.vram import SetVram, ShowPlacement
from support.api_service import call, make_service
from support.engine_runs import make_engine, running
from support.obedient_engine import Obedient

VRAM = "/admin/vram"


def test_placement_is_the_engines_answer() -> None:
    engine = Obedient({"layers": []})
    response = call(make_service(engine), "GET", "/admin/placement")
    assert (response.status_code, response.json()) == (200, {"layers": []})
    assert engine.asked == [ShowPlacement()]


def test_sizes_are_told_to_the_engine() -> None:
    engine = Obedient({"devices": []})
    response = call(make_service(engine), "POST", VRAM, json={"gpu0": "6GiB", "gpu1": 1000, "gpu2": None})
    assert (response.status_code, response.json()) == (200, {"devices": []})
    assert engine.asked == [SetVram(limits={"gpu0": 6 << 30, "gpu1": 1000, "gpu2": None})]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({}, "name at least one accelerator"),
        ({"gpu0": "six"}, "gpu0: 'six' is no size; write one such as 2GiB"),
        ({"gpu0": [1]}, "gpu0: write a size such as 6GiB, a number of bytes, or null"),
        ({"gpu0": True}, "gpu0: write a size"),
        ({"gpu0": 1.5}, "gpu0: write a size"),
        ({"gpu0": 10**18 * 2}, "gpu0: '2000000000000000000' is no size"),
        ([], "body"),
    ],
)
def test_what_is_no_size_is_refused(body: Any, told: str) -> None:
    engine = Obedient({})
    response = call(make_service(engine), "POST", VRAM, json=body)
    assert response.status_code == 400 and told in response.json()["error"]["message"]
    assert not engine.asked


def test_what_the_engine_refuses_is_the_clients_fault() -> None:
    engine = Obedient(InvalidRequestError("there is no gpu7; there is gpu0", "gpu7"))
    response = call(make_service(engine), "POST", VRAM, json={"gpu7": "1GiB"})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "gpu7") and "there is no gpu7" in error["message"]


def test_a_step_that_does_not_end_is_not_waited_for() -> None:
    engine = Obedient(None)
    with pytest.raises(EngineError, match=r"has not ended within 0\.01 s; nothing was changed"):
        asyncio.run(answered(make_service(engine), ShowPlacement(), 0.01))
    assert engine.waiting.cancelled()  # so the engine will leave it undone


def test_what_was_begun_and_does_not_end_is_said_to_go_on() -> None:
    engine = Obedient(None)
    assert engine.waiting.set_running_or_notify_cancel()
    with pytest.raises(EngineError, match=r"begun, and has not ended within 0\.01 s; it goes on"):
        asyncio.run(answered(make_service(engine), ShowPlacement(), 0.01))


def test_a_daemon_without_accelerators_says_so() -> None:
    with running(make_engine()) as client:
        response = call(make_service(client), "GET", "/admin/placement")
    assert response.status_code == 400
    assert "serves without accelerators" in response.json()["error"]["message"]
