"""`isotherm top` against daemons that are played by a scripted engine."""

from typing import Any

import pytest
from support.api_service import make_service, serving
from support.cli import run
from support.status_data import status_data

pytestmark = pytest.mark.usefixtures("own_folders")


def experts(phase: str, layers: int = 2, count: int = 4) -> dict[str, Any]:
    return {
        "phase": phase,
        "devices": ["ram", "gpu0"],
        "layers": list(range(layers)),
        "experts": count,
        "top_k": 2,
        "tokens": 640.0,
        "heat": [[0.0, 3.0, 9.0, 1.5][: min(count, 4)] + [1.0] * max(count - 4, 0)] * layers,
        "where": [[0] * count] * layers,
        "coming": [],
    }


def shown(service: Any, *arguments: object) -> Any:
    with serving(service) as port:
        return run("top", "--url", f"http://127.0.0.1:{port}", "--looks", 1, *arguments)


def test_a_look_tells_what_the_daemon_does() -> None:
    result = shown(make_service(status=status_data, experts=experts))
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    for words in ("ready", "tokens/s 12.3", "streams 1 2 waiting", "25%", "2 of 8 blocks", "weights_reencoded x 3"):
        assert words in text
    assert "experts of 640 tokens" in text
    assert any(line.strip() == "0  ██▄" for line in result.stdout.splitlines())


def test_a_dense_model_has_no_heat() -> None:
    assert "experts" not in shown(make_service(status=status_data)).stdout


def test_what_is_too_much_to_show_is_counted() -> None:
    service = make_service(status=status_data, experts=lambda phase: experts(phase, layers=30, count=100))
    assert "6 more layers, 4 more experts" in shown(service).stdout


def test_several_looks_remember_the_rates() -> None:
    result = shown(make_service(status=status_data), "--looks", 3, "--every", 0.2)
    assert "███" in result.stdout


def test_another_server_is_named_as_such() -> None:
    assert shown(make_service(status=lambda: {"hello": 1})).exit_code == 6


def test_no_daemon_is_told() -> None:
    assert run("top", "--url", "http://127.0.0.1:9", "--looks", 1).exit_code == 6
