"""Sessions of the console: a stream ends with its session, and a changed token ends all."""

from __future__ import annotations

import http.client
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.console.access_settings import AccessSettings
from service.console.web import server, watch
from tests.support.console_thread import ConsoleThread
from tests.support.processes import wait_until

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


class Browser:
    """What a browser does: it signs in, listens, and signs out."""

    def __init__(self, url: str) -> None:
        self.address = url.partition("://")[2]
        self.cookie = ""

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.address, timeout=30)

    def sign_in(self, token: str) -> int:
        connection = self._connection()
        connection.request("POST", "/login", urllib.parse.urlencode({"token": token}), FORM)
        answer = connection.getresponse()
        self.cookie = (answer.getheader("Set-Cookie") or "").partition(";")[0]
        connection.close()
        return answer.status

    def sign_out(self) -> None:
        connection = self._connection()
        connection.request("POST", "/logout", "", {**FORM, "Cookie": self.cookie})
        assert connection.getresponse().status == 303
        connection.close()

    def listen(self, token: str | None = None, timeout_s: float = 10) -> http.client.HTTPResponse:
        headers = {"Cookie": self.cookie} if token is None else {"Authorization": f"Bearer {token}"}
        connection = http.client.HTTPConnection(self.address, timeout=timeout_s)
        connection.request("GET", "/events", headers=headers)
        answer = connection.getresponse()
        assert answer.status == 200
        assert answer.readline() == b"retry: 1000\n"
        return answer


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("the-first-token\n")
    return path


@pytest.fixture
def console(token_file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ConsoleThread]:
    """A console without a cluster, which looks at its files often."""

    def quick(name: str, **settings: object) -> AccessSettings:
        return AccessSettings(name, **{**settings, "interval_s": 0.05})  # type: ignore[arg-type]

    monkeypatch.setattr(server, "AccessSettings", quick)
    monkeypatch.setattr(watch, "EVERY_S", 600)  # no event comes meanwhile
    with ConsoleThread("127.0.0.1:1", token="the-first-token", token_file=str(token_file)) as found:
        yield found


def test_a_stream_ends_when_its_session_is_signed_out_and_others_go_on(console: ConsoleThread) -> None:
    first, second = Browser(console.url), Browser(console.url)
    assert (first.sign_in("the-first-token"), second.sign_in("the-first-token")) == (303, 303)
    ends, goes_on = first.listen(), second.listen(timeout_s=0.5)
    first.sign_out()
    ends.read()
    with pytest.raises(TimeoutError):
        goes_on.read()


def test_a_changed_token_is_taken_and_ends_what_the_old_one_opened(
    console: ConsoleThread, token_file: Path
) -> None:
    browser = Browser(console.url)
    assert browser.sign_in("the-first-token") == 303
    streams = [browser.listen(), browser.listen("the-first-token")]
    token_file.write_text("short\n")  # of no use: the old one stays
    token_file.write_text("the-second-token\n")
    for stream in streams:
        stream.read()
    assert Browser(console.url).sign_in("the-first-token") == 401
    wait_until("the new token", lambda: Browser(console.url).sign_in("the-second-token") == 303)
