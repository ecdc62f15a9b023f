"""A real Chromium, driven by playwright: pages that say what went wrong in them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tests.support.processes import wait_until
from tests.support.requirements import need_browser

# As root there is no sandbox; and nothing is to be looked up anywhere but where a page leads.
OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextlib.contextmanager
def chromium_of() -> Iterator[Any]:
    """playwright's browser."""
    path = need_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=list(OPTIONS))
        try:
            yield browser
        finally:
            browser.close()


class Window:
    """One page of the browser, and all that went wrong in it: errors, refused contents, dialogs."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.url = url
        self.troubles: list[str] = []
        self.context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(15_000)
        self.page.on("console", self._told)
        self.page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        self.page.on("dialog", self._dialog)

    def _told(self, message: Any) -> None:
        # A page that is served with these says so in its own words.
        is_status = any(f"status of {status}" in message.text for status in (400, 404, 503))
        if message.type == "error" and not is_status:
            self.troubles.append(f"{message.type}: {message.text}")

    def _dialog(self, dialog: Any) -> None:
        self.troubles.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, path: str) -> Any:
        """The page, loaded."""
        self.page.goto(self.url + path, wait_until="load")
        return self.page

    def text(self, path: str) -> str:
        """Return the visible text of the page at `path`."""
        words: str = self.open(path).inner_text("main")
        return words

    def until(self, expression: str, seconds: float = 30) -> None:
        """Waits for something to be true in the page; the page's own policy forbids it to look by itself."""
        wait_until(expression, lambda: self.page.evaluate(expression), seconds, 0.1)

    def until_live(self, page: Any) -> None:
        """Waits until a page has heard of a look at the nodes."""
        wait_until("live", lambda: page.inner_text("#live") == "live", 30, 0.1)

    def until_it_says(self, words: str) -> None:
        wait_until(words, lambda: words in self.page.inner_text("main"), 30, 0.1)

    def close(self) -> None:
        self.context.close()


@contextlib.contextmanager
def window(browser: Any, url: str, **options: Any) -> Iterator[Window]:
    """A window that must not have seen any trouble when it is closed."""
    found = Window(browser, url, **options)
    try:
        yield found
    finally:
        found.close()
    assert not found.troubles
