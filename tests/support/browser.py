"""A headless Chromium for the tests of the dashboard: Debian's, or whichever is installed."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDE, NARROW = {"width": 1440, "height": 900}, {"width": 375, "height": 720}
PATIENCE_MS = 60_000.0  # a limit for what must happen soon, also beside many other tests


@contextmanager
def browsing() -> Iterator[Browser]:
    """A browser; the test is skipped where none is installed."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no browser is installed ({', '.join(NAMES)}); on Debian: apt-get install chromium")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:  # as root it starts only without its sandbox
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


class Told:
    """What the console of a page said, and what failed in it."""

    def __init__(self, context: BrowserContext) -> None:
        self.faults: list[str] = []
        context.on("console", self._hear)
        context.on("weberror", lambda error: self.faults.append(str(error.error)))

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"{message.type}: {message.text}")


@contextmanager
def page_of(browser: Browser, **options: object) -> Iterator[tuple[Page, Told]]:
    """A page in a window of its own, whose memory ends with it, and in which no colour is on its way to another.
    options: of Playwright's contexts."""
    context = browser.new_context(**({"viewport": WIDE, "reduced_motion": "reduce"} | options))
    context.set_default_timeout(PATIENCE_MS)
    told = Told(context)
    try:
        yield context.new_page(), told
    finally:
        context.close()
