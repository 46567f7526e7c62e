"""GET /admin/plan and /admin/experts."""

from typing import Any

import numpy as np
import pytest
from support.api_service import call, make_service
from support.played_daemon import PLAN, PlayedDaemon


def test_the_plan_is_told_whole() -> None:
    assert call(PlayedDaemon(hot=2).service(), "GET", "/admin/plan").json() == {"plan": PLAN}


def test_without_a_plan_there_is_none() -> None:
    assert call(PlayedDaemon().service(), "GET", "/admin/plan").json() == {"plan": None}


@pytest.mark.parametrize(
    ("query", "phase"), [("", "decode"), ("?phase=decode", "decode"), ("?phase=prefill", "prefill")]
)
def test_experts_are_told_of_a_phase(query: str, phase: str) -> None:
    asked: list[str] = []

    def experts(wanted: str) -> dict[str, Any]:
        asked.append(wanted)
        return {"heat": np.array([[0.25, 1.75]]), "where": np.array([[0, 1]], np.int8), "layers": (3,)}

    response = call(make_service(experts=experts), "GET", f"/admin/experts{query}")
    assert response.json() == {"heat": [[0.25, 1.75]], "where": [[0, 1]], "layers": [3]}
    assert asked == [phase]


def test_a_phase_that_there_is_not_is_refused_by_name() -> None:
    response = call(make_service(), "GET", "/admin/experts?phase=lunch")
    assert response.status_code == 400 and "phase" in response.json()["error"]["message"]
