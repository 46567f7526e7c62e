"""POST /admin/rebalance: what it asks of the engine, and what it makes of bad bodies."""

from typing import Any

import pytest
from isotherm.daemon.errors import InvalidRequestError
from isotherm.daemon.rebalance import Rebalance
from support.api_service import call, make_service
from support.obedient_engine import Obedient

PATH = "/admin/rebalance"


@pytest.mark.parametrize(
    ("body", "command"),
    [
        (None, Rebalance()),
        ({}, Rebalance()),
        ({"dry_run": False}, Rebalance(dry_run=False)),
        ({"rollback": True, "dry_run": False}, Rebalance(dry_run=False, back=True)),
        ({"automatic": False}, Rebalance(automatic=False)),
    ],
)
def test_the_body_becomes_a_command_and_nothing_is_done_unless_told(body: Any, command: Rebalance) -> None:
    engine = Obedient({"swaps": []})
    response = call(make_service(engine), "POST", PATH, **({} if body is None else {"json": body}))
    assert (response.status_code, response.json()) == (200, {"swaps": []})
    assert engine.asked == [command]


@pytest.mark.parametrize(
    ("body", "field"),
    [({"dryrun": False}, "dryrun"), ({"dry_run": "no"}, "dry_run"), ({"rollback": 2}, "rollback"), ([], "body")],
)
def test_what_is_not_understood_does_nothing(body: Any, field: str) -> None:
    engine = Obedient({})
    response = call(make_service(engine), "POST", PATH, json=body)
    assert response.status_code == 400 and response.json()["error"]["message"].startswith(field)
    assert engine.asked == []


def test_the_engines_refusal_is_told() -> None:
    engine = Obedient(InvalidRequestError("there is no round of swaps that could be taken back", "rollback"))
    response = call(make_service(engine), "POST", PATH, json={"rollback": True})
    assert response.status_code == 400 and "no round" in response.json()["error"]["message"]
