"""Script in whatever others may name: it is shown as text, and nothing of it runs."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from tests.browser.conftest import Shown
from tests.support.browser import window
from tests.support.clients import Admin, Confluent, Row

CORPUS = (
    "<script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    '"><svg onload="document.title=\'owned\'">',
    "'><a href=\"javascript:document.title='owned'\">x</a>",
    "</title></textarea></pre><script>document.title='owned'</script>",
    "<iframe srcdoc=\"<script>parent.document.title='owned'</script>\"></iframe>",
    "{{constructor.constructor('document.title=1')()}}",
    "<style>@import 'http://127.0.0.1:1/x.css';</style>",
    "<form action=http://127.0.0.1:1/><input name=x autofocus onfocus=\"document.title='owned'\">",
    "&lt;script&gt;document.title='owned'&lt;/script&gt;",
    "\u202etxt.exe\u2066 \x00\x1b[2J\ufeff",
    "<math><mtext></form><form><mglyph><style></math><img src onerror=\"document.title='owned'\">",
)
FOREIGN = "main script, main iframe, main style, main img, main math, main a[href^='javascript']"


def check(page: Any) -> None:
    assert page.title() != "owned"
    assert page.locator(FOREIGN).count() == 0
    assert page.locator("main [onerror], main [onload], main [onfocus], main [style]").count() == 0


@pytest.fixture(scope="module")
def topic(shown: Shown) -> str:
    name = "script"
    Admin(shown.scene.node.bootstrap).create(name)
    rows = [
        Row(
            0,
            1_700_000_000_000 + n,
            words.encode("utf-8", "surrogatepass"),
            words.encode(),
            ((words[:60], words.encode()),),
        )
        for n, words in enumerate(CORPUS)
    ]
    Confluent().produce(shown.scene.node.bootstrap, name, rows)
    return name


@pytest.mark.parametrize("form", ["auto", "text", "json", "hex"])
def test_keys_values_and_headers_are_text(browser: Any, shown: Shown, topic: str, form: str) -> None:
    with window(browser, shown.url) as looking:
        page = looking.open(f"/records?topic={topic}&where=start&form={form}")
        for summary in page.locator(".record summary").all():
            summary.click()
        check(page)
        assert page.locator(".record").count() == len(CORPUS)
        if form == "text":
            shown_values = page.locator(".record .part pre").all_inner_texts()
            assert CORPUS[0] in shown_values
            assert all("\u202e" not in one and "\x1b" not in one for one in shown_values)


@pytest.mark.parametrize("words", CORPUS)
def test_query_parameters_are_shown_as_text(browser: Any, shown: Shown, words: str) -> None:
    """Whatever an address brings: names of topics, filters, offsets."""
    said = quote(words)
    with window(browser, shown.url) as looking:
        for path in (
            f"/topics?q={said}",
            f"/topic?name={said}",
            f"/topic?name=readings&scale={said}&page={said}",
            f"/records?topic={said}&partition={said}&at={said}&holds={said}&where={said}&form={said}",
            f"/records?topic=readings&where=time&at={said}",
            f"/configuration?q={said}&node={said}",
            f"/configuration?topic={said}",
            f"/bucket?topic={said}",
        ):
            check(looking.open(path))


def test_a_download_is_never_a_page(browser: Any, shown: Shown, topic: str) -> None:
    with window(browser, shown.url, accept_downloads=True) as looking:
        answer = looking.context.request.get(
            f"{shown.url}/records/download?topic={topic}&partition=0&offset=0&part=value"
        )
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"].startswith("attachment")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.body() == CORPUS[0].encode()


def test_the_policy_lets_no_script_of_a_page_run(browser: Any, shown: Shown) -> None:
    """Were a page broken, the browser would still refuse what stands in it."""
    with window(browser, shown.url) as looking:
        page = looking.open("/topics")
        page.evaluate(
            """() => { const one = document.createElement('script');
                one.textContent = "document.title = 'owned'"; document.body.append(one); }"""
        )
        assert page.title() != "owned"
        assert any("Content Security Policy" in one for one in looking.troubles)
        looking.troubles.clear()
