"""What is told of a model that is not loaded."""

from isotherm.daemon.events import EventLog
from isotherm.daemon.fleet.fleet import Fleet
from isotherm.daemon.fleet.status import status_of
from support.api_service import NoLoader
from support.played_daemon import PlayedDaemon


def test_a_model_that_is_not_loaded_has_all_that_is_told_of_others() -> None:
    loaded = PlayedDaemon().status()
    told = status_of(Fleet(("a",), NoLoader(), EventLog()), None, 0, EventLog())
    assert loaded.keys() <= told.keys()
    for name in ("model", "speed", "memory", "kv", "requests", "events", "prefix_cache", "self_test"):
        assert loaded[name].keys() <= told[name].keys(), name
    assert told["speed"]["predicted"] is None
