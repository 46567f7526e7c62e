"""Some seconds of all that clients do; tests/perf/soak.py does it for as long as one likes."""

from support.api_service import CHAT, COMPLETIONS
from support.soak import FINE, Soak
from support.soak_wishes import MESSAGES, OLLAMA_CHAT, RESPONSES


def test_whatever_clients_do_each_request_ends_once_and_nothing_is_left() -> None:
    """[8, 9, 53, 59, 71, 72]"""
    report = Soak(seconds=4.0, clients=24, least=300).run()
    assert report.problems == []
    assert report.accepted == report.ended > 50
    assert set(report.statuses) - FINE <= {"0", "499"}  # nobody was there to be answered
    assert {"200", "400", "429"} <= set(report.statuses)
    assert {CHAT, COMPLETIONS, RESPONSES, MESSAGES, OLLAMA_CHAT} <= set(report.good)
    assert report.grown < 64 * 2**20
