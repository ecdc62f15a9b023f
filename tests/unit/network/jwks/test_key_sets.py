"""Key sets of issuers: fetched, renewed, and kept through whatever the issuer does."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from service.base.world import system_world
from service.config.oauthbearer import KeySetSettings
from service.config.security import TlsSettings
from service.network.jwks import key_sets
from service.network.jwks.key_sets import KeySet, KeySets
from service.security.oauthbearer import TokenRefused
from service.security.sasl_server import SaslUnavailable
from tests.support.certificates import Authority
from tests.support.issuers import IssuerServer, document, issuer_server, key_file, key_set
from tests.support.waiting import until

SETTINGS = KeySetSettings("", None, (), 3_600_000, 20, 100)


def at(url: str, *allowed: str, **more: Any) -> KeySetSettings:
    path = url.removeprefix("file://") if url.startswith("file:") else None
    return replace(SETTINGS, url=url, path=path, allowed_urls=(url, *allowed), **more)


def running(settings: KeySetSettings, test: Callable[[KeySet], Awaitable[None]]) -> None:
    async def run() -> None:
        sets = KeySets(system_world())
        try:
            await test(sets.of(settings, None))
        finally:
            sets.close()

    asyncio.run(run())


def has(found: KeySet, kid: str) -> bool:
    try:
        return found.find("RS256", kid) is not None
    except (TokenRefused, SaslUnavailable):
        return False


def test_keys_are_read_from_a_server_and_from_a_file(tmp_path: Path) -> None:
    async def read(found: KeySet) -> None:
        with pytest.raises(SaslUnavailable):
            found.find("RS256", "one")
        await until(lambda: found.problem is None)
        assert has(found, "one")
        assert not has(found, "two")

    running(at(key_file(tmp_path, "one")), read)
    with issuer_server(document(key_set("one"))) as server:
        running(at(server.url), read)
        assert server.asked == 1


def test_a_changed_file_is_taken_without_a_restart(tmp_path: Path) -> None:
    async def change(found: KeySet) -> None:
        await until(lambda: has(found, "one"))
        key_file(tmp_path, "two")
        await until(lambda: has(found, "two"))
        assert not has(found, "one")

    running(at(key_file(tmp_path, "one"), refresh_ms=20), change)


def test_an_unknown_key_asks_the_issuer_at_once_and_then_not_for_a_minute() -> None:
    async def rotate(found: KeySet) -> None:
        await until(lambda: has(found, "one"))
        found._missing._asked_s -= 60  # a minute ago
        server.answer = document(key_set("one", "two"))
        assert not has(found, "two")
        await until(lambda: has(found, "two"))
        assert server.asked == 2
        for number in range(500):
            assert not has(found, "three")
            assert not has(found, f"made-up-{number}")
        await asyncio.sleep(0.2)
        assert server.asked == 2, "all unknown ids together ask once in ten seconds"
        assert len(found._missing) <= 16

    with issuer_server(document(key_set("one"))) as server:
        running(at(server.url), rotate)


def hang(request: BaseHTTPRequestHandler) -> None:
    time.sleep(1)


def dribble(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.flush_headers()
    for _ in range(40):
        request.wfile.write(b"X-Slow: 1\r\n")
        time.sleep(0.05)


def endless(request: BaseHTTPRequestHandler) -> None:
    """A GiB is announced, and sent as fast as it is read."""
    request.send_response(200)
    request.send_header("Content-Length", str(1 << 30))
    request.end_headers()
    try:
        for _ in range(1 << 10):
            request.wfile.write(b" " * (1 << 20))
            BYTES.append(1 << 20)
    except OSError:
        return


BYTES: list[int] = []
REASONS: dict[str, tuple[Callable[[BaseHTTPRequestHandler], None], str]] = {
    "hangs": (hang, "did not answer in 0.3 s"),
    "dribbles": (dribble, "did not answer in 0.3 s"),
    "sends a GiB": (endless, "more than 1048576 bytes"),
    "sends garbage": (document(b"<html>"), "no JSON"),
    "sends another document": (document(b'{"keys": 5}'), "no key set"),
    "nests deeply": (document(b"[" * 500_000), "no JSON"),
    "fails": (document(b"no", 503), "status 503"),
    "redirects to a file": (document(b"", 302, Location="file:///etc/passwd"), "not allowed"),
    "redirects elsewhere": (document(b"", 307, Location="http://127.0.0.1:1/"), "not allowed"),
    "redirects to no URL": (document(b"", 302, Location="http://["), "redirects to no URL"),
    "redirects nowhere": (document(b"", 302), "status 302"),
    "has no key of use": (document(b'{"keys": []}'), "none of its keys can be used"),
}


@pytest.mark.parametrize("what", REASONS)
def test_an_issuer_that_misbehaves_changes_nothing_and_is_named(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_sets, "_TIMEOUT_S", 0.3)
    answer, reason = REASONS[what]

    async def misbehave(found: KeySet) -> None:
        await until(lambda: found.problem is not None and reason in found.problem)
        server.answer = document(key_set("one"))
        found._read() if what == "has no key of use" else None
        await until(lambda: has(found, "one"))
        assert found.problem is None
        if what == "has no key of use":
            return
        server.answer = answer
        if found._timer is not None:
            found._timer.cancel()
        found._read()
        await until(lambda: found.problem is not None and reason in found.problem)
        assert has(found, "one"), "the keys of before count"

    BYTES.clear()
    with issuer_server(answer) as server:
        running(at(server.url), misbehave)
    assert sum(BYTES) < 64 << 20


def test_a_bug_on_the_thread_is_told_and_keys_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a bug")

    async def fail(found: KeySet) -> None:
        await until(lambda: has(found, "one"))
        server.answer = document(key_set("two"))
        with monkeypatch.context() as patched:
            patched.setattr(key_sets, "read_keys", broken)
            await until(lambda: found.problem is not None)
        assert found.problem == "RuntimeError: see the log"
        assert has(found, "one")
        await until(lambda: has(found, "two"))
        assert found.problem is None

    with issuer_server(document(key_set("one"))) as server:
        running(at(server.url, refresh_ms=20), fail)


def test_a_redirect_to_an_allowed_url_is_followed() -> None:
    async def read(found: KeySet) -> None:
        await until(lambda: has(found, "one"))

    with issuer_server(document(key_set("one"))) as other, issuer_server(hang) as server:
        server.answer = document(b"", 302, Location=other.url)
        running(at(server.url, other.url), read)


def test_a_circle_of_redirects_ends() -> None:
    async def read(found: KeySet) -> None:
        await until(lambda: found.problem is not None and "more than 3 redirects" in found.problem)
        assert server.asked >= 4

    with issuer_server(hang) as server:
        server.answer = document(b"", 302, Location=server.url)
        running(at(server.url, retry_ms=60_000, retry_max_ms=60_000), read)


def test_tries_come_at_growing_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def fail(found: KeySet) -> None:
        arm = found._arm

        def faster(after_s: float) -> None:
            pauses.append(after_s)
            arm(after_s / 10)

        monkeypatch.setattr(found, "_arm", faster)
        await until(lambda: len(pauses) == 6)

    with issuer_server(document(b"", 500)) as server:
        running(at(server.url, retry_ms=100, retry_max_ms=1000), fail)
    assert pauses[:6] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_a_missing_or_damaged_file_is_named(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/keys.json"

    async def read(found: KeySet) -> None:
        await until(lambda: found.problem is not None and "keys.json" in found.problem)
        (tmp_path / "keys.json").write_bytes(b"{" + b" " * (1 << 20))
        await until(lambda: found.problem is not None and "at most 1048576" in found.problem)
        key_file(tmp_path, "one")
        await until(lambda: has(found, "one"))

    running(at(url), read)


def test_https_is_trusted_by_the_listeners_own_trust_store(tmp_path: Path) -> None:
    ca, other = Authority(), Authority()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ca.issue().write(tmp_path / "issuer.pem"))

    async def read(server: IssuerServer) -> None:
        sets = KeySets(system_world())
        settings = at(server.url)
        trusting = sets.of(settings, TlsSettings(truststore_location=ca.write(tmp_path / "ca.pem")))
        strangers = TlsSettings(truststore_location=other.write(tmp_path / "other.pem"))
        doubting, without = sets.of(settings, strangers), sets.of(settings, None)
        await until(lambda: has(trusting, "one"))
        await until(lambda: "certificate verify failed" in f"{doubting.problem}")
        await until(lambda: "certificate verify failed" in f"{without.problem}")
        assert not has(doubting, "one")
        assert sets.problems
        sets.close()

    with issuer_server(document(key_set("one")), context) as server:
        asyncio.run(read(server))


def test_one_place_is_read_once_for_all_listeners() -> None:
    async def share(server: IssuerServer) -> None:
        sets = KeySets(system_world())
        settings = at(server.url)
        assert sets.of(settings, None) is sets.of(replace(settings), None)
        await until(lambda: not sets.problems)
        assert server.asked == 1
        sets.close()

    with issuer_server(document(key_set("one"))) as server:
        asyncio.run(share(server))
