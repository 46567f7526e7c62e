"""Fixtures of the dashboard's tests."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from playwright.sync_api import Browser, Page
from support.api_service import serving
from support.browser import browsing, page_of
from support.played_daemon import PlayedDaemon

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for a file of tests: as long as it runs, no other event loop can run in this thread."""
    with browsing() as browser:
        yield browser


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens the dashboard of a played daemon, at a view, and waits for a state of its connection. Fails at the end if
    the console of a page had anything to say."""
    with ExitStack() as stack:
        consoles = []

        def open_one(
            daemon: PlayedDaemon,
            view: str = "",
            *,
            state: str = "live",
            service: dict[str, Any] | None = None,
            **options: Any,
        ) -> Page:
            port = stack.enter_context(serving(daemon.service(**(service or {}))))
            page, told = stack.enter_context(page_of(browser, **options))
            consoles.append(told)
            page.goto(f"http://127.0.0.1:{port}/ui/{view}")
            page.locator(f"#connection[data-state={state}]").wait_for()
            return page

        yield open_one
    assert [fault for told in consoles for fault in told.faults] == []
