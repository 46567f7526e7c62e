"""The address that a daemon listens on."""

import pytest
from isotherm.daemon.cli.address import bind, is_local


@pytest.mark.parametrize(("host", "local"), [("127.0.0.1", True), ("localhost", True), ("0.0.0.0", False)])
def test_an_address_that_others_reach_is_told_apart(host: str, local: bool) -> None:
    with bind(host, 0) as listener:
        assert is_local(listener) is local
