"""Acts of the console in a real browser: by the keyboard alone, without a script, from another site."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from service.console.web.acts.routes import FORMS
from tests.browser.conftest import Shown
from tests.browser.test_script_in_names import CORPUS, check
from tests.support.browser import Window, window
from tests.support.clients import Admin
from tests.support.console_thread import ConsoleThread
from tests.support.signed_in import TOKEN


@pytest.fixture(scope="module")
def acting(shown: Shown) -> Iterator[str]:
    """URL of a console of the same node, which allows changes."""
    with ConsoleThread(shown.scene.node.bootstrap, token=TOKEN, allow_changes=True) as console:
        yield console.url


def sign_in(looking: Window, path: str = "/topics") -> Any:
    """Sign in by the keyboard; the page of the token has its field focused."""
    page = looking.open(path)
    looking.until("document.activeElement.name === 'token'")
    page.keyboard.type(TOKEN)
    with page.expect_navigation():
        page.keyboard.press("Enter")
    looking.troubles.clear()  # the 401 of the page that asks for the token
    return page


def tab_to(page: Any, selector: str) -> None:
    """Press Tab until the element has the focus."""
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("one => document.activeElement.matches(one)", selector):
            return
    raise AssertionError(f"{selector} is not reached")


def contrast(page: Any, selector: str) -> float:
    """Return the contrast of an element's text with what is behind it."""
    colours = page.evaluate(
        """one => { const style = getComputedStyle(document.querySelector(one));
            return [style.color, style.backgroundColor]; }""",
        selector,
    )
    light = []
    for colour in colours:
        parts = [int(part) / 255 for part in colour.strip("rgb()").split(",")[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        light.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(light) + 0.05) / (min(light) + 0.05)


@pytest.mark.parametrize(
    ("scheme", "width"), [pytest.param("light", 1280, marks=pytest.mark.thorough), ("dark", 360)]
)
def test_a_topic_is_created_by_the_keyboard_alone(
    browser: Any, acting: str, shown: Shown, scheme: Any, width: int
) -> None:
    name = f"by-keys-{scheme}"
    with window(browser, acting, color_scheme=scheme) as looking:
        looking.page.set_viewport_size({"width": width, "height": 740})
        page = sign_in(looking)
        tab_to(page, "nav.changes a")
        page.keyboard.press("Enter")
        page.wait_for_url("**/change/create-topic")
        for field, typed in (("topic", name), ("partitions", "3"), ("settings", "retention.ms=60000")):
            tab_to(page, f"[name={field}]")
            page.keyboard.type(typed)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert contrast(page, "textarea") > 4.5
        tab_to(page, "main button")
        page.keyboard.press("Enter")
        looking.until_it_says("nothing has been done yet")
        # The field that confirms has the focus; a wrong name does nothing.
        looking.until("document.activeElement.name === 'typed'")
        page.keyboard.type("by-key")
        page.keyboard.press("Enter")
        looking.until_it_says("What was typed is not what stands there.")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert contrast(page, "button.danger") > 4.5
        assert contrast(page, ".notice.bad") > 4.5
        looking.until("document.activeElement.name === 'typed'")
        page.keyboard.type(name)
        page.keyboard.press("Enter")
        looking.until_it_says(f"The topic {name} is there.")
        assert contrast(page, ".notice.good") > 4.5
        assert "/change/result?id=" in page.url
        page.reload()
        assert f"The topic {name} is there." in page.inner_text("main")


def test_acts_need_no_script(browser: Any, acting: str, shown: Shown) -> None:
    Admin(shown.scene.node.bootstrap).create("plain", 2)
    with window(browser, acting, java_script_enabled=False) as looking:
        page = sign_in(looking)
        page.goto(f"{acting}/topic?name=plain")
        page.click("nav.changes a:has-text('Produce a record')")
        page.select_option("select[name=value_form]", "hex")
        page.fill("textarea[name=value]", "66 69 72 6e")
        page.click("main button")
        page.fill("input[name=typed]", "plain")
        page.click("main button")
        assert "The record is in plain-" in page.inner_text("main")
        page.click("a:has-text('Look at the record')")
        assert "firn" in page.inner_text("main .record")
        page.goto(f"{acting}/topic?name=plain")
        page.click("nav.changes a:has-text('Delete the topic')")
        page.click("main button")
        page.fill("input[name=typed]", "plain")
        page.click("main button")
        assert "The topic plain is deleted." in page.inner_text("main")


@pytest.mark.thorough
def test_a_form_keeps_what_is_typed_while_other_pages_renew_themselves(browser: Any, acting: str) -> None:
    with window(browser, acting) as looking:
        page = sign_in(looking)
        page.goto(f"{acting}/change/topic-settings?topic=readings")
        page.fill("textarea[name=set]", "retention.ms=abc")
        page.click("main button")
        looking.until_it_says("Nothing was done.")
        looking.until_live(page)
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        assert page.input_value("textarea[name=set]") == "retention.ms=abc"
        assert "INVALID_CONFIG" in page.inner_text("main")


@pytest.mark.thorough
def test_script_in_fields_is_text(browser: Any, acting: str) -> None:
    words = quote("".join(CORPUS))
    with window(browser, acting) as looking:
        page = sign_in(looking)
        for form in FORMS:
            query = "&".join(f"{one.name}={words}" for one in form.fields)
            page.goto(f"{acting}/change/{form.name}?{query[:3000]}")
            check(page)
        # And as a topic's name, which the cluster refuses and repeats.
        page.fill("textarea[name=value]", CORPUS[0])
        page.fill("input[name=topic]", CORPUS[2])
        page.click("main button")
        looking.until_it_says("Nothing was done.")
        check(page)


class _OtherSite(http.server.BaseHTTPRequestHandler):
    """A site that sends a form to the console, and shows the console in a frame."""

    page = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(self.page)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def other_site(acting: str) -> Iterator[str]:
    _OtherSite.page = f"""<!doctype html><form method=post action="{acting}/change/delete-topic">
        <input name=topic value=readings><input name=csrf value=x><button>Win</button></form>
        <iframe src="{acting}/change/delete-topic?topic=readings"></iframe>""".encode()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _OtherSite)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


def test_another_site_can_neither_send_a_form_nor_frame_one(
    browser: Any, acting: str, other_site: str
) -> None:
    """Another port of the same machine is the same site for cookies: the origin alone tells them apart."""
    with window(browser, acting) as looking:
        page = sign_in(looking)
        page.goto(other_site)
        assert "Delete a topic" not in page.frames[1].content()
        with page.expect_navigation() as led:
            page.click("button")
        assert led.value.status == 403
        assert "not sent by a page of this console" in page.inner_text("body")
        assert any("frame-ancestors" in one for one in looking.troubles)
        looking.troubles.clear()
