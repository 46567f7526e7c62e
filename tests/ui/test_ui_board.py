"""What stands beside the chat, in a browser: figures, heat map, plan, rebalancing, memory of accelerators."""

from collections.abc import Callable

import pytest
from isotherm.daemon.vram import SetVram
from playwright.sync_api import Page, expect
from support.api_service import wait_until
from support.browser import NARROW
from support.played_daemon import PlayedDaemon

Open = Callable[..., Page]
VIEWS = ("#/chat", "#/experts", "#/plan", "#/server")
# The colours of the map's first row, from left to right.
PIXELS = """canvas => {
  const scratch = document.createElement("canvas");
  [scratch.width, scratch.height] = [canvas.width, canvas.height];
  const pen = scratch.getContext("2d", { willReadFrequently: true });
  pen.drawImage(canvas, 0, 0);
  const row = pen.getImageData(0, Math.round(24 * devicePixelRatio), canvas.width, 1).data;
  return Array.from({ length: canvas.width }, (_, x) => row.slice(4 * x, 4 * x + 3).join());
}"""


def colours(page: Page) -> list[str]:
    found: list[str] = page.locator("#map-canvas").evaluate(PIXELS)
    return found


def test_figures_stand_beside_what_was_foretold(open_page: Open) -> None:
    page = open_page(PlayedDaemon(hot=4))
    figures = page.get_by_role("region", name="Key figures")
    for words in (
        "36.7 tokens/s",
        "predicted 38.4 (34.9–41.2)",
        "2 running",
        "1 waiting",
        "31 %",
        "1,410 of 2,048",
        "71 %",
    ):
        expect(figures).to_contain_text(words)


def test_figures_without_a_plan_say_so(open_page: Open) -> None:
    page = open_page(PlayedDaemon())
    expect(page.get_by_role("region", name="Key figures")).to_contain_text("no plan, no prediction")


def test_the_map_shows_place_and_heat_and_follows_the_order(open_page: Open) -> None:
    page = open_page(PlayedDaemon(hot=4), "#/experts")
    expect(page.locator("#map-summary")).to_contain_text("4 layers of 16 experts")
    expect(page.locator("#map-summary")).to_contain_text("48 in RAM, 16 on gpu0")
    before = colours(page)
    assert len(set(before)) > 6
    page.get_by_role("combobox", name="Order").select_option("heat")
    assert colours(page) != before and sorted(set(colours(page))) == sorted(set(before))
    page.get_by_role("combobox", name="Colour").select_option("heat")
    assert not set(colours(page)) & set(before) - {"0,0,0"}


def test_the_map_is_walked_by_keyboard_and_says_each_cell(open_page: Open) -> None:
    page = open_page(PlayedDaemon(hot=4), "#/experts")
    page.locator("#map-canvas").focus()
    cell = page.locator("#map-cell")
    expect(cell).to_contain_text("Layer 0, expert 0")
    for key, told in (
        ("ArrowRight", "Layer 0, expert 1:"),
        ("ArrowDown", "Layer 1, expert 1:"),
        ("End", "Layer 1, expert 15: in RAM, chosen 4.50 times its fair share"),
        ("PageDown", "Layer 3, expert 15"),
        ("Control+Home", "Layer 0, expert 0:"),
        ("ArrowLeft", "Layer 0, expert 0:"),
    ):
        page.keyboard.press(key)
        expect(cell).to_contain_text(told)


def test_pointing_at_a_cell_tells_of_it(open_page: Open) -> None:
    page = open_page(PlayedDaemon(hot=4), "#/experts")
    page.locator("#map-canvas").hover(position={"x": 4, "y": 22})
    expect(page.locator("#map-tooltip")).to_contain_text("Layer 0, expert 0")
    page.get_by_role("heading", name="Experts").hover()
    expect(page.locator("#map-tooltip")).to_be_hidden()


def test_the_map_is_a_table_too(open_page: Open) -> None:
    page = open_page(PlayedDaemon(hot=4), "#/experts")
    page.get_by_text("As a table").click()
    table = page.get_by_role("table", name="Experts by layer")
    expect(table.get_by_role("columnheader")).to_have_text(
        ["Layer", "RAM", "gpu0", "Found on accelerators", "Hottest experts, times the fair share"]
    )
    expect(table.get_by_role("row")).to_have_count(5)
    expect(table.get_by_role("row").nth(1)).to_contain_text("15 (4.5)")


def test_a_large_model_has_a_map(open_page: Open) -> None:
    page = open_page(PlayedDaemon(layers=94, experts=160, hot=60), "#/experts")
    expect(page.locator("#map-summary")).to_contain_text("94 layers of 160 experts")
    page.locator("#map-canvas").focus()
    page.keyboard.press("Control+End")
    expect(page.locator("#map-cell")).to_contain_text("Layer 93, expert 159")


def test_a_dense_model_says_that_it_has_no_experts(open_page: Open) -> None:
    page = open_page(PlayedDaemon(layers=0, experts=0), "#/experts")
    expect(page.locator("#map-summary")).to_contain_text("This model is dense")
    expect(page.locator("#map-canvas")).to_be_hidden()


def test_without_accelerators_the_map_is_of_heat_alone(open_page: Open) -> None:
    page = open_page(PlayedDaemon(), "#/experts")
    expect(page.locator("#map-summary")).to_contain_text("All lie in RAM")
    expect(page.get_by_role("combobox", name="Colour")).to_be_hidden()
    expect(page.get_by_role("group", name="Rebalance")).to_contain_text("isotherm serve --accelerator")


def test_the_plan_is_shown_with_its_reasons(open_page: Open) -> None:
    page = open_page(PlayedDaemon(hot=4), "#/plan")
    plan = page.get_by_role("region", name="Plan")
    for words in ("By the recorded traffic they take 71 % of the choices", "hottest experts", "KV cache 1.00 GiB"):
        expect(plan).to_contain_text(words)
    row = plan.get_by_role("table", name="predicted and measured").get_by_role("row").nth(1)
    expect(row).to_contain_text("Decoding38.434.9–41.236.796 %")
    expect(plan.get_by_role("table", name="What else was considered").get_by_role("row")).to_have_count(4)


def test_a_daemon_without_a_plan_says_how_to_make_one(open_page: Open) -> None:
    page = open_page(PlayedDaemon(), "#/plan")
    expect(page.get_by_role("region", name="Plan")).to_contain_text("isotherm plan MODEL")


def test_nothing_is_moved_before_the_dry_run_was_agreed_to(open_page: Open) -> None:
    daemon = PlayedDaemon(hot=4)
    page = open_page(daemon, "#/experts")
    box = page.get_by_role("group", name="Rebalance")
    before = [list(row) for row in daemon.where]
    box.get_by_role("button", name="See what would move").click()
    table = box.get_by_role("table", name="What would move")
    expect(table.get_by_role("row")).to_have_count(3)
    expect(box).to_contain_text("2 swaps: 2.00 MiB over the link in 3.00 ms, saving 80.0 ms in the next 4,096 tokens.")
    box.get_by_role("button", name="Leave them").click()
    expect(table).to_have_count(0)
    assert daemon.where == before
    box.get_by_role("button", name="See what would move").click()
    box.get_by_role("button", name="Move them").click()
    expect(box).to_contain_text("2 swaps done.")
    assert daemon.where != before
    page.get_by_text("What moved").click()
    expect(page.locator("#map-moves")).to_contain_text("expert 15: RAM → gpu0")
    box.get_by_role("button", name="Take the last round back").click()
    box.get_by_role("button", name="Take them back").click()
    expect(box).to_contain_text("2 swaps done.")
    assert daemon.where == before


def test_the_daemon_can_be_told_to_move_nothing_by_itself(open_page: Open) -> None:
    daemon = PlayedDaemon(hot=4)
    page = open_page(daemon, "#/experts")
    switch = page.get_by_role("checkbox", name="by itself")
    expect(switch).to_be_checked()
    switch.uncheck()
    expect(switch).to_be_enabled()
    assert daemon.automatic is False


def test_memory_of_an_accelerator_is_bounded(open_page: Open) -> None:
    daemon = PlayedDaemon(hot=4)
    page = open_page(daemon, "#/server")
    card = page.get_by_role("group", name="gpu0")
    expect(card).to_contain_text("14.0 GiB of 16.0 GiB in use")
    card.get_by_label("Most memory of gpu0").fill("6GiB")
    page.keyboard.press("Enter")
    expect(card).to_contain_text("no more than 6GiB from now on")
    card.get_by_role("button", name="Use all").click()
    expect(card).to_contain_text("all of its memory again")
    assert daemon.vram == [SetVram(limits={"gpu0": 6 << 30}), SetVram(limits={"gpu0": None})]


def test_degradations_are_told(open_page: Open) -> None:
    page = open_page(PlayedDaemon(), "#/server")
    expect(page.get_by_role("region", name="Degradations")).to_contain_text("weights_reencoded × 3")


@pytest.mark.parametrize("view", VIEWS)
def test_a_narrow_screen_needs_no_scrolling_sideways(open_page: Open, view: str) -> None:
    page = open_page(PlayedDaemon("word " * 60, layers=12, experts=128, hot=40), view, viewport=NARROW)
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
    shown = page.locator("nav [aria-current=page]")
    expect(shown).to_have_attribute("href", view)
    expect(page.locator(f"section[data-view={view[2:]}]")).to_be_visible()


def test_the_map_of_a_narrow_screen_follows_the_keyboard(open_page: Open) -> None:
    page = open_page(PlayedDaemon(layers=4, experts=160, hot=40), "#/experts", viewport=NARROW)
    page.locator("#map-canvas").focus()
    page.keyboard.press("End")
    expect(page.locator("#map-cell")).to_contain_text("expert 159")
    assert page.locator("#map-scroll").evaluate("node => node.scrollLeft + node.clientWidth >= 160 * 5 - 1")


def ground(page: Page) -> str:
    found: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return found


def test_light_and_dark_follow_the_system_until_one_is_chosen(open_page: Open) -> None:
    page = open_page(PlayedDaemon(hot=4), "#/experts", color_scheme="light")
    light, light_map = ground(page), colours(page)
    page.emulate_media(color_scheme="dark")
    wait_until(lambda: colours(page) != light_map)  # the map hears of it with the next frame
    dark = ground(page)
    assert dark != light
    page.get_by_role("button", name="Colours: Auto").click()
    assert ground(page) == light and colours(page) == light_map
    page.reload()
    assert ground(page) == light
    page.get_by_role("button", name="Colours: Light").click()
    assert ground(page) == dark


def test_views_are_links_that_the_browser_goes_back_through(open_page: Open) -> None:
    page = open_page(PlayedDaemon(hot=4))
    page.get_by_role("link", name="Plan").click()
    expect(page.get_by_role("heading", name="Plan")).to_be_visible()
    page.get_by_role("link", name="Server").click()
    expect(page.get_by_role("heading", name="This daemon")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("heading", name="Plan")).to_be_visible()
    expect(page.get_by_role("heading", name="Chat")).to_be_visible()  # on a wide screen, beside all others
