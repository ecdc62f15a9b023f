"""Every page of the console in a real browser, with something to show."""

from __future__ import annotations

import json
import math
import subprocess
import time
import urllib.request
from datetime import datetime
from typing import Any

import confluent_kafka
import pytest

from tests.browser.conftest import Shown
from tests.support.browser import window
from tests.support.processes import FIRN, wait_until

PAGES = {
    "/": ("Overview", "Nodes", "Produced", "ready"),
    "/topics": ("readings", "audit", "disk and bucket"),
    "/topic?name=readings": ("readings", "Partition", "being written"),
    "/topic?name=readings&scale=time": ("readings", "Time"),
    "/topic?name=readings&scale=bytes": ("readings", "MB"),
    "/topic?name=readings&partition=1": ("readings-1", "Segments and objects", ".seg", ".log"),
    "/topic?name=audit": ("audit", "Partition"),
    "/records?topic=readings&partition=0&where=start": ("bucket answered in", "sensor"),
    "/records?topic=audit&partition=0&where=end": ("disk answered in", "sensor"),
    "/records?topic=readings": ("disk answered in", "sensor", "Live tail"),
    "/bucket": ("Objects", "A month of it", "Days", "Cuts", "Requests", "Unfinished uploads", "Last fsck"),
    "/cold": ("Cold reads", "Calls of the store", "Found in memory"),
    "/configuration": ("log.dirs", "configuration file", "Data directories"),
    "/configuration?topic=readings": ("remote.storage.enable", "topic"),
    "/transactions": ("Transactional id", "Hanging transactions", "Find"),
}


@pytest.fixture(scope="module", autouse=True)
def surveyed(shown: Shown) -> None:
    """The bucket has been gone through, and the node been looked at twice."""

    def get(path: str) -> str:
        with urllib.request.urlopen(shown.url + path, timeout=10) as answer:
            text: str = answer.read().decode()
            return text

    wait_until("the survey", lambda: "A month of it" in get("/bucket") and "readings" in get("/bucket"))
    wait_until("two looks at the node", lambda: len(json.loads(get("/series"))["t"]) >= 2)


@pytest.mark.parametrize("path", PAGES)
def test_a_page_shows_what_there_is(browser: Any, shown: Shown, path: str) -> None:
    with window(browser, shown.url) as looking:
        words = looking.text(path)
        assert not [one for one in PAGES[path] if one.lower() not in words.lower()]


@pytest.mark.parametrize("path", PAGES)
def test_tables_need_no_script(browser: Any, shown: Shown, path: str) -> None:
    with window(browser, shown.url, java_script_enabled=False) as looking:
        words = looking.text(path)
        assert not [one for one in PAGES[path] if one.lower() not in words.lower()]


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/topic?name=readings",
        "/records?topic=readings&where=start",
        "/bucket",
        "/topics",
        "/records?topic=audit",
    ],
)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_scrolls_no_page_sideways(browser: Any, shown: Shown, path: str, scheme: Any) -> None:
    with window(browser, shown.url, color_scheme=scheme) as looking:
        looking.page.set_viewport_size({"width": 360, "height": 740})
        page = looking.open(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_light_and_dark_differ_and_can_be_read(browser: Any, shown: Shown) -> None:
    found = {}
    for scheme in ("light", "dark"):
        with window(browser, shown.url, color_scheme=scheme) as looking:
            page = looking.open("/")
            for name in ("color", "backgroundColor"):
                found[scheme, name] = page.evaluate(f"getComputedStyle(document.documentElement).{name}")
    assert _luminance(found["light", "color"]) < 0.1 < 0.8 < _luminance(found["light", "backgroundColor"])
    assert _luminance(found["dark", "backgroundColor"]) < 0.1 < 0.7 < _luminance(found["dark", "color"])


def _luminance(colour: str) -> float:
    red, green, blue = (math.pow(int(part) / 255, 2.2) for part in colour.strip("rgb()").split(",")[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_a_line_goes_from_ice_to_water(browser: Any, shown: Shown) -> None:
    """To scale: what lies in the bucket alone is whole ice, what is in both is half, the newest is water."""
    with window(browser, shown.url) as looking:
        page = looking.open("/topic?name=readings&partition=0")
        pieces = page.evaluate(
            """[...document.querySelectorAll('.strata .piece')].map(one => ({
                kind: one.getAttribute('class'), x: one.x.baseVal.value, height: one.height.baseVal.value,
                y: one.y.baseVal.value, width: one.width.baseVal.value}))"""
        )
        ice = [one for one in pieces if " ice " in one["kind"]]
        water = [one for one in pieces if " water " in one["kind"]]
        assert ice
        assert water
        assert min(one["x"] for one in ice) == 0
        assert {one["height"] for one in ice} <= {28, 14}
        assert {one["y"] for one in water if "copied" in one["kind"]} <= {14}
        active = [one for one in water if "active" in one["kind"]]
        assert max(one["x"] + one["width"] for one in active) == pytest.approx(1000, abs=2)
        assert max(one["x"] for one in ice) < max(one["x"] for one in active)


def test_a_piece_tells_what_it_is_to_pointer_and_keys(browser: Any, shown: Shown) -> None:
    with window(browser, shown.url) as looking:
        page = looking.open("/topic?name=readings&partition=0")
        page.locator(".strata .piece.ice").first.hover()
        card = page.locator(".card")
        card.wait_for(state="visible")
        assert "in the bucket" in card.inner_text()
        assert "offsets 0 to" in card.inner_text()
        page.locator("svg.strata").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        assert card.is_visible()
        page.keyboard.press("Escape")
        assert not card.is_visible()


def test_keys_lead_from_page_to_page(browser: Any, shown: Shown) -> None:
    with window(browser, shown.url) as looking:
        page = looking.open("/")
        page.keyboard.press("g")
        page.keyboard.press("t")
        page.wait_for_url("**/topics")
        page.keyboard.press("/")
        page.keyboard.type("aud")
        page.keyboard.press("Enter")
        page.wait_for_url("**/topics?q=aud")
        assert "readings" not in page.inner_text("main table")


def test_a_question_mark_lists_the_keys_and_escape_closes_the_list(browser: Any, shown: Shown) -> None:
    with window(browser, shown.url) as looking:
        page = looking.open("/topics")
        page.keyboard.press("?")
        words = page.locator("dialog.help").inner_text()
        assert ("g x" in words, "Transactions" in words, "Search" in words) == (True, True, True)
        page.keyboard.press("Escape")
        assert not page.locator("dialog.help").is_visible()


def test_times_are_utc_and_local_on_request(browser: Any, shown: Shown) -> None:
    with window(browser, shown.url, timezone_id="Asia/Kolkata") as looking:
        page = looking.open("/records?topic=readings&partition=0&where=start&most=20")
        first = page.locator(".record time").first
        said, stamp = first.inner_text(), first.get_attribute("datetime")
        assert said.endswith(" UTC")
        page.keyboard.press("l")
        there = first.inner_text()
        assert there.endswith(" +05:30")
        day, clock, zone = there.split()
        assert datetime.fromisoformat(f"{day}T{clock}{zone}") == datetime.fromisoformat(stamp)
        # It stays so on the next page, and goes back.
        page = looking.open("/records?topic=readings&partition=0&where=start&most=20")
        assert page.locator(".record time").first.inner_text() == there
        page.click("footer button:has-text('Times: local')")
        assert page.locator(".record time").first.inner_text() == said


def test_the_live_tail_shows_what_is_produced_newest_first(browser: Any, shown: Shown) -> None:
    from tests.support.clients import Confluent, Row

    with window(browser, shown.url) as looking:
        page = looking.open("/records?topic=audit")
        assert page.locator(".record").count() == 50
        page.click("a:has-text('Live tail')")
        looking.until_live(page)
        now_ms = int(time.time() * 1000)
        rows = [Row(n % 2, now_ms + n, b"k", b"tail-%d" % n, ()) for n in range(4)]
        Confluent().produce(shown.scene.node.bootstrap, "audit", rows)
        wait_until("the records", lambda: "tail-3" in page.locator(".record").first.inner_text(), 30, 0.1)
        found = page.locator(".record pre.text").all_inner_texts()
        assert [one for one in found if one.startswith("tail")] == ["tail-3", "tail-2", "tail-1", "tail-0"]
        page.click("a:has-text('Stop the live tail')")
        assert "tail=1" not in page.url


def test_records_of_all_partitions_go_back_page_by_page(browser: Any, shown: Shown) -> None:
    with window(browser, shown.url) as looking:
        page = looking.open("/records?topic=readings&most=20")
        times: list[str] = []
        for _ in range(3):
            times += page.locator(".record time").all_inner_texts()
            page.click("a:has-text('Earlier')")
            page.wait_for_load_state("load")
        assert len(times) == 60
        assert times == sorted(times, reverse=True)


def test_transactions_are_found_by_the_keyboard_alone(browser: Any, shown: Shown) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": shown.scene.node.bootstrap, "transactional.id": "billing-7"}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("ledger", b"open", partition=0)
    try:
        assert producer.flush(30) == 0
        with window(browser, shown.url, color_scheme="dark") as looking:
            page = looking.open("/")
            page.keyboard.press("g")
            page.keyboard.press("x")
            page.wait_for_url("**/transactions")
            page.keyboard.press("/")
            page.keyboard.type("bill.*")
            page.keyboard.press("Enter")
            looking.until_it_says("1 transactional id found, 1 with an open transaction")
            page.set_viewport_size({"width": 360, "height": 740})
            assert page.evaluate("document.documentElement.scrollWidth") <= 360
            page.locator("tbody a:has-text('billing-7')").focus()
            page.keyboard.press("Enter")
            looking.until_it_says("Open since")
            assert page.evaluate("document.documentElement.scrollWidth") <= 360
            page.click("a:has-text('ledger')")
            looking.until_it_says("Behind the high watermark")
            assert "billing-7 (producer" in page.inner_text("#live-stable")
    finally:
        producer.abort_transaction(30)


def test_charts_are_drawn_and_go_on(browser: Any, shown: Shown) -> None:
    with window(browser, shown.url) as looking:
        page = looking.open("/")
        page.wait_for_selector(".uplot canvas")
        assert page.locator(".uplot").count() == 6
        looking.until_live(page)


HIDE = """hidden => {
    Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});
    document.dispatchEvent(new Event('visibilitychange')); }"""


def test_hidden_pages_hold_no_connection(browser: Any, shown: Shown) -> None:
    """A browser opens six to one place, and a stream for each tab would take them all."""
    with window(browser, shown.url) as looking:
        tabs = [looking.open("/topics")]
        for _ in range(6):
            looking.until_live(tabs[-1])
            tabs[-1].evaluate(HIDE, True)
            tabs.append(looking.context.new_page())
            tabs[-1].goto(f"{shown.url}/topics", wait_until="load", timeout=10_000)
        first = tabs[0]
        first.evaluate("document.getElementById('live').textContent = ''")
        first.evaluate(HIDE, False)
        looking.until_live(first)


def test_a_page_renews_itself(browser: Any, shown: Shown) -> None:
    """What is produced while somebody looks is there without a click."""
    from tests.support.clients import Confluent
    from tests.support.console import readings

    with window(browser, shown.url) as looking:
        page = looking.open("/topic?name=audit")
        before = page.inner_text("main .lines")
        Confluent().produce(shown.scene.node.bootstrap, "audit", readings(40, 2, 1_700_000_000_000, 1000))
        wait_until("the new records", lambda: page.inner_text("main .lines") != before)


def test_records_can_be_found_by_time_and_by_what_they_hold(browser: Any, shown: Shown) -> None:
    with window(browser, shown.url) as looking:
        page = looking.open("/records?topic=readings&partition=0&where=start&holds=Kyoto&most=20")
        assert page.locator(".record").count() == 20
        assert all("kyoto" in one.lower() for one in page.locator(".record").all_inner_texts())
        first = page.locator(".record time").nth(19).inner_text()
        day, clock, zone = first.split()
        assert zone == "UTC"
        page = looking.open(f"/records?topic=readings&partition=0&where=time&at={day}T{clock}&most=20")
        assert page.locator(".record time").first.inner_text() >= first


def test_values_show_as_text_json_and_hex_and_come_down_as_they_are(browser: Any, shown: Shown) -> None:
    with window(browser, shown.url, accept_downloads=True) as looking:
        for form, sign in (("json", '"sensor"'), ("text", '{"sensor"'), ("hex", "7b 22 73 65")):
            page = looking.open(f"/records?topic=readings&partition=0&where=start&most=20&form={form}")
            page.locator(".record details").first.locator("summary").click()
            assert sign in page.locator(".record details pre").first.inner_text()
        with page.expect_download() as coming:
            page.locator(".record a[download]", has_text="value").first.click()
        with open(coming.value.path(), "rb") as file:
            assert json.loads(file.read())["sequence"] == 0
        with page.expect_download() as coming:
            page.locator("a", has_text="JSON lines").click()
        with open(coming.value.path(), encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        assert [row["offset"] for row in rows] == list(range(20))


def test_an_order_to_erase_keys_shows_how_far_it_is(browser: Any, shown: Shown) -> None:
    words = ["start", "--topics", "readings", "--key", "nobody's", "--execute", "--json"]
    command = [str(FIRN), "erase", *words, "--bootstrap-server", shown.scene.node.bootstrap]
    with window(browser, shown.url) as looking:
        assert "orders to erase keys" not in looking.text("/bucket").lower()
        given = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        order = str(json.loads(given.stdout)["id"])
        looking.open("/bucket")
        looking.until_it_says(order)
        for said in ("Orders to erase keys", "Replicas left", "Archives left", "Waits for", "readings"):
            assert said.lower() in looking.page.inner_text("main").lower(), said
