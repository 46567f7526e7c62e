"""The chat in a browser: streams, ends, errors, reasoning and calls, and that a model's text stays text."""

import json
from collections.abc import Callable

from isotherm.daemon.chat_template import ChatTemplate
from isotherm.daemon.errors import EngineError
from playwright.sync_api import Page, expect
from support.api_service import wait_until
from support.played_daemon import PlayedDaemon
from support.scripted_engine import HANG, ByteTokenizer, says

Open = Callable[..., Page]
THINKS = "</think>{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
HERMES = "tools <tool_call> {% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
CALL = '<tool_call>{"name": "clock", "arguments": {"zone": "UTC"}}</tool_call>'
TOOL = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}


def ask(page: Page, text: str = "hello") -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def prompts(daemon: PlayedDaemon) -> list[str]:
    return [ByteTokenizer().decode(submit.prompt) for submit in daemon.submitted]


def test_an_answer_is_shown_while_it_is_written_and_stop_aborts_it(open_page: Open) -> None:
    daemon = PlayedDaemon([*says("Once upon"), HANG])
    page = open_page(daemon)
    ask(page)
    answer = page.get_by_role("article", name="Answer")
    expect(answer).to_contain_text("Once upon")
    expect(page.get_by_role("log")).to_have_attribute("aria-busy", "true")
    page.get_by_role("button", name="Stop").click()
    expect(answer).to_contain_text("Stopped.")
    wait_until(lambda: daemon.aborted and not daemon.open)
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    expect(answer).to_contain_text("Once upon")


def test_escape_stops_too(open_page: Open) -> None:
    daemon = PlayedDaemon([*says("Once"), HANG])
    page = open_page(daemon)
    ask(page)
    expect(page.get_by_role("article", name="Answer")).to_contain_text("Once")
    page.keyboard.press("Escape")
    expect(page.get_by_role("article", name="Answer")).to_contain_text("Stopped.")


def test_a_conversation_goes_on_and_outlives_a_reload(open_page: Open) -> None:
    daemon = PlayedDaemon("Yes.")
    page = open_page(daemon)
    for text in ("first", "second"):
        ask(page, text)
        expect(page.get_by_role("article", name="Answer").last).to_contain_text("Another answer")
    page.reload()
    expect(page.get_by_role("article")).to_have_count(4)
    ask(page, "third")
    expect(page.get_by_role("article")).to_have_count(6)
    wait_until(lambda: len(daemon.submitted) == 3)
    assert prompts(daemon)[-1] == "user: first\nassistant: Yes.\nuser: second\nassistant: Yes.\nuser: third\n"
    page.get_by_role("button", name="New chat").click()
    expect(page.get_by_role("article")).to_have_count(0)


def test_a_failure_is_told_and_can_be_tried_again(open_page: Open) -> None:
    answers = iter([[*says("Half", 0.02), 0.1, EngineError("the model broke")], says("Whole")])
    daemon = PlayedDaemon()
    daemon.script = lambda submit: next(answers)
    page = open_page(daemon)
    ask(page)
    expect(page.get_by_role("article", name="Answer")).to_contain_text("Half")
    expect(page.get_by_role("alert").filter(has_text="the model broke")).to_be_visible()
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("article", name="Answer")).to_contain_text("Whole")
    assert prompts(daemon)[0] == prompts(daemon)[1]


def test_reasoning_is_folded_away(open_page: Open) -> None:
    daemon = PlayedDaemon("<think>Let me see.</think>It is so.")
    page = open_page(daemon, service={"chat_template": ChatTemplate(THINKS)})
    ask(page)
    answer = page.get_by_role("article", name="Answer")
    expect(answer.get_by_text("It is so.")).to_be_visible()
    expect(answer.get_by_text("Let me see.")).to_be_hidden()
    answer.get_by_text("Reasoning").click()
    expect(answer.get_by_text("Let me see.")).to_be_visible()


def test_a_call_is_shown_and_its_result_goes_back(open_page: Open) -> None:
    answers = iter([says(CALL), says("Noon.")])
    daemon = PlayedDaemon()
    daemon.script = lambda submit: next(answers)
    page = open_page(daemon, service={"chat_template": ChatTemplate(HERMES)})
    page.get_by_text("Settings", exact=True).click()
    page.get_by_label("Tools").fill(json.dumps([TOOL]))
    ask(page, "what time is it?")
    expect(page.get_by_label("Call of clock")).to_contain_text('"zone": "UTC"')
    page.get_by_label("What clock gave").fill("12:00")
    page.get_by_role("button", name="Send results").click()
    expect(page.get_by_role("article", name="Answer").last).to_contain_text("Noon.")
    assert "tool:12:00" in prompts(daemon)[1]


def test_settings_are_sent_and_kept(open_page: Open) -> None:
    daemon = PlayedDaemon("Yes.")
    page = open_page(daemon)
    page.get_by_text("Settings", exact=True).click()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Most tokens").fill("2")
    ask(page)
    expect(page.get_by_role("article", name="Answer")).to_contain_text("cut at the limit of tokens")
    (submit,) = daemon.submitted
    assert (submit.sampling.temperature, submit.sampling.max_tokens) == (0.5, 2)
    assert prompts(daemon)[0].startswith("system: Be brief.")
    page.reload()
    expect(page.get_by_label("System prompt")).to_have_value("Be brief.")


def test_a_wrong_setting_is_told_before_anything_is_asked(open_page: Open) -> None:
    daemon = PlayedDaemon()
    page = open_page(daemon)
    page.get_by_text("Settings", exact=True).click()
    page.get_by_label("Tools").fill("{")
    page.get_by_label("System prompt").focus()
    expect(page.get_by_role("alert").filter(has_text="not valid JSON")).to_be_visible()
    ask(page)
    expect(page.get_by_role("article", name="Answer")).to_contain_text("not valid JSON")
    assert daemon.submitted == []


MARKDOWN = """# Title

Some **bold**, *emphasis*, `code <b>` and a [link](https://example.org/a_b).

1. one
   - inner
2. two

| a | b |
|---|---|
| 1 | 2 |

```html
<img src=x onerror=alert(1)>
```
"""


def test_markdown_becomes_elements(open_page: Open) -> None:
    page = open_page(PlayedDaemon(MARKDOWN))
    ask(page)
    text = page.get_by_role("article", name="Answer").locator(".text")
    expect(text.get_by_role("heading", name="Title")).to_be_visible()
    expect(text.locator("strong")).to_have_text("bold")
    expect(text.locator("em")).to_have_text("emphasis")
    expect(text.locator("p code")).to_have_text("code <b>")
    expect(text.get_by_role("link")).to_have_attribute("href", "https://example.org/a_b")
    expect(text.get_by_role("link")).to_have_attribute("rel", "noopener noreferrer")
    expect(text.locator("ol > li")).to_have_count(2)
    expect(text.locator("ol > li ul > li")).to_have_text("inner")
    expect(text.get_by_role("cell")).to_have_text(["1", "2"])
    expect(text.locator("pre")).to_have_text("<img src=x onerror=alert(1)>")


HOSTILE = """<img src=x onerror="window.broken = 1"><script>window.broken = 1</script>
[a](javascript:window.broken=1) ![p](https://example.org/pixel.png) [b](data:text/html,x)
<iframe src="https://example.org"></iframe> **<b onclick=alert(1)>x</b>**"""


def test_what_a_model_writes_stays_text(open_page: Open) -> None:
    page = open_page(PlayedDaemon(HOSTILE))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    ask(page)
    text = page.get_by_role("article", name="Answer").locator(".text")
    expect(text).to_contain_text("<script>window.broken = 1</script>")
    expect(text).to_contain_text("<b onclick=alert(1)>x</b>")
    for name in ("img", "script", "iframe", "b"):
        expect(text.locator(name)).to_have_count(0)
    links = text.get_by_role("link").evaluate_all("nodes => nodes.map((node) => node.href)")
    assert links == ["https://example.org/pixel.png", "https://example.org/"]
    assert page.evaluate("window.broken") is None
    assert not [url for url in asked if "example.org" in url]


def test_a_text_is_the_same_whole_and_in_pieces(open_page: Open) -> None:
    """Blocks that did not change are not made again; what is shown must not depend on that."""
    page = open_page(PlayedDaemon(says(MARKDOWN, 0.001)))
    ask(page)
    text = page.get_by_role("article", name="Answer").locator(".text")
    expect(page.get_by_role("button", name="Another answer")).to_be_visible()
    streamed = text.evaluate("node => node.outerHTML")
    page.reload()
    expect(text).to_contain_text("Title")
    assert text.evaluate("node => node.outerHTML") == streamed
