"""Session at a console that allows changes, as a browser without a script has one."""

from __future__ import annotations

import http.client
import re
import ssl
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote, urlencode

from tests.support.console_thread import Page, page_of

TOKEN = "a-token-of-some-length"
FORM = "application/x-www-form-urlencoded"


class Answer(NamedTuple):
    """An answer as it comes, without going where it leads."""

    status: int
    headers: Mapping[str, str]
    text: str


def ask(url: str, method: str, path: str, body: str | bytes | None = None, **headers: str | None) -> Answer:
    """Send one request; headers that are None are left out, `_` stands for `-`."""
    scheme, _, place = url.partition("://")
    connection = http.client.HTTPConnection(place, timeout=30)
    if scheme == "https":
        blind = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(place, timeout=30, context=blind)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items() if value is not None}
        connection.request(method, path, body, named)
        answer = connection.getresponse()
        told = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, told, answer.read().decode())
    finally:
        connection.close()


class SignedIn:
    """A session at the console of `url`."""

    def __init__(self, url: str, token: str = TOKEN) -> None:
        self.url = url
        signed = ask(url, "POST", "/login", urlencode({"token": token, "to": "/"}), Content_Type=FORM)
        assert signed.status == 303, signed.text
        self.cookie = signed.headers["set-cookie"].partition(";")[0]

    def ask(self, method: str, path: str, body: str | bytes | None = None, **headers: str | None) -> Answer:
        """Send one request as a page of the console does; `headers` are put in the place of what it sends."""
        sent: dict[str, str | None] = {"Cookie": self.cookie}
        if method == "POST":
            sent |= {"Content_Type": FORM, "Origin": self.url, "Sec_Fetch_Site": "same-origin"}
        return ask(self.url, method, path, body, **(sent | headers))

    def get(self, path: str) -> Page:
        found = self.ask("GET", path)
        return page_of(found.status, found.text)

    def post(self, path: str, fields: Mapping[str, str]) -> Page:
        """Send a form, and go where the answer leads."""
        found = self.ask("POST", path, urlencode(fields))
        if found.status == 303:
            return self.get(found.headers["location"])
        return page_of(found.status, found.text)

    def preview(self, form: str, **fields: str) -> Page:
        """Open a form, fill it in and send it."""
        empty = self.get(f"/change/{form}")
        assert empty.status == 200, empty.text
        return self.post(f"/change/{form}", {"csrf": hidden(empty, "csrf"), **fields})

    def confirm(self, preview: Page, typed: str) -> Page:
        """Confirm a preview; return its result."""
        return self.post("/change/confirm", confirmation(preview, typed))

    def act(self, form: str, typed: str, **fields: str) -> Page:
        """Do what a form asks for; return its result."""
        shown = self.preview(form, **fields)
        assert shown.status == 200, shown.text
        return self.confirm(shown, typed)


def confirmation(preview: Page, typed: str) -> dict[str, str]:
    return {"csrf": hidden(preview, "csrf"), "plan": hidden(preview, "plan"), "typed": typed}


def hidden(page: Page, name: str) -> str:
    """Return the value of a hidden field."""
    found = re.search(rf'<input type="hidden" name="{quote(name)}" value="([^"]*)"', page.source)
    assert found is not None, page.text
    return found[1]
