"""A daemon that goes away and comes back, or asks for a key; and what those who do not see or point need."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from isotherm.api.app import create_app
from isotherm.daemon.config import key_digest
from isotherm.daemon.events import EventLog
from isotherm.daemon.fleet.fleet import Fleet
from playwright.sync_api import Browser, Page, expect
from support.api_service import AsLoaded, NoLoader, make_service, serve_app, server_of, serving
from support.browser import NARROW, page_of
from support.held_port import held_port
from support.played_daemon import MODEL, PlayedDaemon
from support.scripted_engine import HANG, says

Open = Callable[..., Page]
KEYS = frozenset({key_digest("sésame")})


def is_of_the_network(fault: str) -> bool:
    """What the browser says by itself of requests that were refused or found nobody."""
    return "Failed to load resource" in fault


def test_the_page_waits_for_a_daemon_that_restarts_and_goes_on(browser: Browser) -> None:
    first = PlayedDaemon("Yes.", hot=4, pid=1)
    with held_port() as port, page_of(browser) as (page, told):
        with serving(first.service(), port):
            page.goto(f"http://127.0.0.1:{port}/ui/")
            expect(page.locator("#connection")).to_have_text("Ready")
        expect(page.locator("#connection")).to_have_text("Reconnecting")
        expect(page.get_by_text("The daemon does not answer")).to_be_visible()
        page.get_by_label("Message", exact=True).fill("are you there?")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert").filter(has_text="does not answer")).to_be_visible()
        second = PlayedDaemon("Yes.", layers=6, hot=2, pid=2)
        with serving(second.service(), port):
            expect(page.locator("#connection")).to_have_text("Ready")
            expect(page.locator("#banner")).to_be_hidden()
            expect(page.locator("#map-summary")).to_contain_text("6 layers of 16 experts")
            expect(page.locator("#map-moves")).to_be_hidden()  # what lies elsewhere now was not moved
            page.get_by_role("button", name="Try again").click()
            expect(page.get_by_role("article", name="Answer")).to_contain_text("Yes.")
    assert [fault for fault in told.faults if not is_of_the_network(fault)] == []


def test_an_answer_that_is_cut_off_says_so(browser: Browser) -> None:
    daemon = PlayedDaemon([*says("Half", 0.01), HANG])
    with page_of(browser) as (page, _):
        with serving(daemon.service()) as port:
            page.goto(f"http://127.0.0.1:{port}/ui/")
            page.get_by_label("Message", exact=True).fill("hello")
            page.keyboard.press("Enter")
            expect(page.get_by_role("article", name="Answer")).to_contain_text("Half")
        expect(page.get_by_role("article", name="Answer").get_by_role("alert")).not_to_be_empty()
        expect(page.get_by_role("article", name="Answer")).to_contain_text("Half")
        expect(page.get_by_role("button", name="Send")).to_be_visible()


def test_an_engine_that_is_not_ready_is_told_with_its_reason(open_page: Open) -> None:
    daemon = PlayedDaemon()
    daemon.changes = {"state": "failed", "reason": "three steps in a row failed"}
    page = open_page(daemon, state="unready")
    expect(page.locator("#connection")).to_have_text("failed")
    expect(page.locator("#banner")).to_contain_text("three steps in a row failed")
    daemon.changes = {}
    expect(page.locator("#connection")).to_have_text("Ready")
    expect(page.locator("#banner")).to_be_hidden()


def test_of_several_models_the_chosen_one_is_shown_and_asked(browser: Browser) -> None:
    first, second = PlayedDaemon("I am one.", hot=4), PlayedDaemon("I am two.", layers=6)
    states = {MODEL: "ready", "other": "unloaded"}

    def status(model: str | None) -> dict[str, Any]:
        name = model or MODEL
        shown = (first if name == MODEL else second).status()
        rows = [{"id": each, "state": state, "reason": "", "loading": None} for each, state in states.items()]
        return shown | {"model": shown["model"] | {"id": name}, "models": rows}

    fleet: Fleet[AsLoaded] = Fleet(tuple(states), NoLoader(), EventLog())
    fleet.adopt(MODEL, AsLoaded(first.service()))
    server = replace(server_of(first.service()), models=fleet, status=status)
    with serve_app(create_app(server)) as port, page_of(browser) as (page, told):
        page.goto(f"http://127.0.0.1:{port}/ui/")
        expect(page.locator("#map-summary")).to_contain_text("4 layers of 16 experts")
        choice = page.get_by_role("combobox", name="Model")
        expect(choice).to_have_value(MODEL)
        choice.select_option("other")
        expect(page.locator("#connection")).to_have_text("Not loaded")
        expect(page.locator("#banner")).to_contain_text("other is not loaded; the next message for it loads it.")
        fleet.adopt("other", AsLoaded(make_service(second, model_id="other", plan=second.plan, experts=second.use)))
        states["other"] = "ready"
        expect(page.locator("#connection")).to_have_text("Ready")
        expect(page.locator("#map-summary")).to_contain_text("6 layers of 16 experts")
        page.get_by_label("Message", exact=True).fill("who are you?")
        page.keyboard.press("Enter")
        expect(page.get_by_role("article", name="Answer")).to_contain_text("I am two.")
    assert told.faults == []
    assert (len(first.submitted), len(second.submitted)) == (0, 1)


def give_key(page: Page, key: str) -> None:
    page.get_by_label("API key").fill(key)
    page.keyboard.press("Enter")


def test_the_key_that_a_server_asks_for_is_kept_in_the_tab_alone(browser: Browser) -> None:
    daemon = PlayedDaemon("Yes.", hot=4)
    with serving(daemon.service(api_keys=KEYS)) as port, page_of(browser) as (page, told):
        page.goto(f"http://127.0.0.1:{port}/ui/")
        give_key(page, "wrong")
        expect(page.get_by_role("dialog", name="That key was not accepted")).to_be_visible()
        give_key(page, "sésame")
        expect(page.locator("#connection")).to_have_text("Ready")
        page.get_by_label("Message", exact=True).fill("hello")
        page.keyboard.press("Enter")
        expect(page.get_by_role("article", name="Answer")).to_contain_text("Yes.")
        assert page.evaluate("Object.values(localStorage).join()").count("sésame") == 0
        page.reload()
        expect(page.locator("#connection")).to_have_text("Ready")
        expect(page.get_by_role("dialog")).to_have_count(0)
        other = page.context.new_page()
        other.goto(f"http://127.0.0.1:{port}/ui/")
        expect(other.get_by_role("dialog", name="This server asks for a key")).to_be_visible()
    assert [fault for fault in told.faults if not is_of_the_network(fault)] == []


def test_whoever_gives_no_key_can_do_so_later(browser: Browser) -> None:
    with serving(PlayedDaemon().service(api_keys=KEYS)) as port, page_of(browser) as (page, _):
        page.goto(f"http://127.0.0.1:{port}/ui/")
        page.get_by_role("button", name="Not now").click()
        expect(page.locator("#connection")).to_have_text("Locked")
        page.get_by_role("button", name="Enter a key").click()
        give_key(page, "sésame")
        expect(page.locator("#connection")).to_have_text("Ready")


# Of all elements that can be used or lead somewhere: those without a name; and texts that are hard to read.
NAMELESS = """() => [...document.querySelectorAll(
    "button, a[href], input, select, textarea, [tabindex='0'], dialog, nav, section")]
  .filter((node) => !node.ariaLabel && !node.labels?.length && !node.hasAttribute("aria-labelledby"))
  .filter((node) => !node.textContent.trim())
  .map((node) => node.outerHTML)"""
PALE = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0.99) return colour;
    }
    return [255, 255, 255];
  };
  const found = new Set();
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!own || !node.checkVisibility() || node.disabled || node.closest(".tooltip, .skip, noscript")) continue;
    const [one, other] = [light(parse(getComputedStyle(node).color)), light(ground(node))].sort((a, b) => b - a);
    const contrast = (one + 0.05) / (other + 0.05);
    if (contrast < 4.5) found.add(`${contrast.toFixed(2)} ${node.outerHTML.slice(0, 80)}`);
  }
  return [...found];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", ["#/chat", "#/experts", "#/plan", "#/server"])
def test_everything_has_a_name_and_enough_contrast(open_page: Open, view: str, scheme: str) -> None:
    page = open_page(PlayedDaemon("A [link](https://example.org) and `code`.", hot=4), view, color_scheme=scheme)
    if view == "#/chat":
        page.get_by_label("Message", exact=True).fill("hello")
        page.keyboard.press("Enter")
        expect(page.get_by_role("link", name="link")).to_be_visible()
    for summary in page.locator("summary:visible").all():
        summary.click()
    assert page.evaluate(NAMELESS) == []
    assert page.evaluate(PALE) == []
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((node) => node.id)")
    assert len(ids) == len(set(ids))
    for name in ("aria-labelledby", "aria-describedby", "for"):
        named = page.evaluate(f"[...document.querySelectorAll('[{name}]')].map((node) => node.getAttribute('{name}'))")
        assert set(named) <= set(ids)


def test_the_keyboard_goes_through_the_page_in_order(open_page: Open) -> None:
    page = open_page(PlayedDaemon(hot=4))
    expected = ["Skip to the content", "Experts", "Plan", "Server", "theme-button", "new-chat", "transcript"]
    ways: list[str] = []
    for _ in expected:
        page.keyboard.press("Tab")
        ways.append(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", ways
    assert ways == expected


def test_the_link_to_the_content_leads_there_and_keeps_the_view(open_page: Open) -> None:
    page = open_page(PlayedDaemon(hot=4), "#/plan", viewport=NARROW)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    expect(page.get_by_role("heading", name="Plan")).to_be_visible()
