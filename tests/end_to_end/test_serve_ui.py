"""The dashboard of a real daemon: chat, heat, plan and rebalancing, and going on after a restart on the same port."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from isotherm.placement.plan_file import save_plan
from isotherm.placement.shape import CPU
from playwright.sync_api import Browser, Page, expect
from support import tiny
from support.accelerated import CARD, plan_of
from support.browser import browsing, page_of
from support.daemon_process import running
from support.held_port import held_port
from support.kept_machine import keep_profile

HOT = [0, CPU, 0, CPU, 0, 0, CPU, 0]
TRAFFIC = {"prompt": "the cat", "max_tokens": 40, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


def ask(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Another answer")).to_be_visible()


def test_a_daemon_is_watched_and_told_what_to_do(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, plan = tmp_path / "tiny.gguf", tmp_path / "plan.json"
    tiny.write_gguf(model, "qwen3_moe", "Q4_0")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    keep_profile(threads=2)
    save_plan(plan_of(model, experts=HOT), plan)
    with held_port() as port, page_of(browser) as (page, told):
        options = ("--accelerator", CARD, "--plan", plan, "--port", port)
        with running(tmp_path, model, *options) as daemon:
            httpx.post(f"{daemon.url}/admin/rebalance", json={"automatic": False}, timeout=60, trust_env=False)
            page.goto(f"{daemon.url}/ui/")
            expect(page.locator("#connection")).to_have_text("Ready")
            box = page.get_by_role("group", name="Rebalance")
            expect(box.get_by_role("checkbox")).not_to_be_checked()
            expect(page.locator("#map-summary")).to_contain_text("11 in RAM, 5 on gpu0. Nothing was decoded yet")
            page.get_by_text("Settings", exact=True).click()
            page.get_by_label("Most tokens").fill("8")
            ask(page, "the cat")
            for _ in range(6):  # more traffic than one would wait for here
                httpx.post(f"{daemon.url}/v1/completions", json=TRAFFIC, timeout=60, trust_env=False)
            expect(page.locator("#map-summary")).to_contain_text("decoded tokens the hottest tenth took")
            box.get_by_role("button", name="See what would move").click()
            box.get_by_role("button", name="Move them").click()
            expect(box).to_contain_text("done.")
            expect(page.locator("#map-moves")).to_be_visible()
            expect(page.locator("#map-summary")).to_contain_text("11 in RAM, 5 on gpu0")
            page.get_by_role("link", name="Plan").click()
            reasons = httpx.get(f"{daemon.url}/admin/plan", timeout=60, trust_env=False).json()["plan"]["reasons"]
            expect(page.get_by_role("region", name="Plan")).to_contain_text(reasons[0])
            expect(page.get_by_role("table", name="predicted and measured").get_by_role("row").nth(1)).to_contain_text(
                "%"
            )
            daemon.stop()
        expect(page.locator("#connection")).to_have_text("Reconnecting")
        with running(tmp_path, model, *options):
            expect(page.locator("#connection")).to_have_text("Ready")
            ask(page, "ok?")
            expect(page.get_by_role("article", name="Answer")).to_have_count(2)
    assert [fault for fault in told.faults if "Failed to load resource" not in fault] == []
