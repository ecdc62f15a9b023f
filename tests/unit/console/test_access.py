"""The HTTP listener of a node with a certificate and a token: who is served, and files that change."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from service.base.errors import ConfigError
from service.base.turns import TurnTimes
from service.base.world import system_world
from service.config.passwords import Password
from service.console.access_settings import AccessSettings
from service.console.server import LISTENER_KEY, MOST_CONNECTIONS, serving
from service.node.node_parts import NodeParts
from service.node.supervisor import Supervisor
from tests.support.certificates import Authority

CA = Authority()
TOKEN = "a-token-of-20-letters"
PATHS = ("/metrics", "/readyz", "/version", "/turns", "/tiering")


def settings(folder: Path, *, token: bool = True, tls: bool = True, **more: Any) -> AccessSettings:
    """A listener with files in `folder`, which are looked at every 20 ms."""
    given: dict[str, Any] = {"interval_s": 0.02, **more}
    if token:
        path = folder / "token"
        if not path.exists():
            path.write_text(f"{TOKEN}\n")
            path.chmod(0o600)
        given |= {"token": str(path), "token_option": "firn.http.token.file"}
    if tls:
        path = folder / "http.pem"
        if not path.exists():
            CA.issue("localhost").write(path)
        given |= {"certificate": str(path), "certificate_option": "firn.http.ssl.keystore.location"}
    return AccessSettings(LISTENER_KEY, **given)


class Client:
    def __init__(self, url: str) -> None:
        self.scheme, _, place = url.partition("://")
        self.host, _, port = place.rpartition(":")
        self.port = int(port)

    async def connect(self, ca: str = CA.pem) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.scheme == "http":
            return await asyncio.open_connection(self.host, self.port)
        context = ssl.create_default_context(cadata=ca)
        return await asyncio.open_connection(self.host, self.port, ssl=context, server_hostname="localhost")

    async def get(self, path: str, authorization: str | None = None, method: str = "GET") -> tuple[int, str]:
        """Return status and body."""
        reader, writer = await self.connect()
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        if authorization is not None:
            head += f"Authorization: {authorization}\r\n"
        writer.write(f"{head}\r\n".encode("latin-1"))
        answer = (await reader.read()).decode()
        writer.close()
        lines, _, body = answer.partition("\r\n\r\n")
        if " 401 " in lines:
            assert 'WWW-Authenticate: Bearer realm="firn"' in lines
        return int(lines.split()[1]), body

    async def why(self) -> str:
        """Return the reason of the check of `/readyz`, once its answer is no second old."""
        text = (await self.get("/readyz", f"Bearer {TOKEN}"))[1]
        return str(json.loads(text)["checks"]["http"]["why"])

    async def until(self, condition: Callable[[], Awaitable[object]]) -> None:
        async with asyncio.timeout(10):
            while not await condition():
                await asyncio.sleep(0.02)


@asynccontextmanager
async def listening(access: AccessSettings) -> AsyncIterator[Client]:
    parts = NodeParts(Supervisor(), TurnTimes(), is_broker=False, node_id=1, session_ms=9000)
    async with serving(
        parts, system_world(), listener="127.0.0.1:0", access=access, most_partitions=0
    ) as url:
        yield Client(url)


def running(access: AccessSettings, test: Callable[[Client], Awaitable[None]]) -> None:
    async def run() -> None:
        async with listening(access) as client:
            await test(client)

    asyncio.run(run())


@pytest.mark.parametrize("tls", [True, False], ids=["https", "http"])
def test_everything_but_healthz_takes_the_token(tmp_path: Path, tls: bool) -> None:
    async def test(client: Client) -> None:
        assert client.scheme == ("https" if tls else "http")
        assert await client.get("/healthz") == (200, "ok\n")
        assert (await client.get("/healthz", method="POST"))[0] == 405
        for path in PATHS:
            assert (await client.get(path, f"Bearer {TOKEN}"))[0] in (200, 503), path
            assert (await client.get(path))[0] == 401, path
        assert (await client.get("/nothing", f"bearer  {TOKEN} "))[0] == 404
        assert (await client.get("/nothing"))[0] == 401, "not even what there is"
        assert (await client.get("/metrics", method="DELETE"))[0] == 401
        for wrong in (
            TOKEN,
            f"Basic {TOKEN}",
            "Bearer",
            f"Bearer {TOKEN[:-1]}",
            f"Bearer {TOKEN}x",
            "Bearer \xff",
        ):
            assert (await client.get("/metrics", wrong))[0] == 401, wrong

    running(settings(tmp_path, tls=tls), test)


def test_without_a_token_everybody_is_served(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        status, text = await client.get("/metrics")
        assert status == 200
        days = next(line for line in text.splitlines() if line.startswith("firn_tls_certificate_days"))
        assert days.startswith('firn_tls_certificate_days{listener="firn.http.listener"} 9.9')
        assert (await client.get("/readyz", "Bearer nothing"))[0] == 503, "it has not started"

    running(settings(tmp_path, token=False), test)


def test_a_changed_token_and_certificate_are_taken(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        (tmp_path / "token").write_text("another-token-of-21-c\n")
        await client.until(lambda: _is(client, 200, "Bearer another-token-of-21-c"))
        assert (await client.get("/version", f"Bearer {TOKEN}"))[0] == 401
        other = Authority("Other")
        other.issue("localhost").write(tmp_path / "http.pem")

        async def is_taken() -> bool:
            try:
                _, writer = await client.connect(other.pem)
            except ssl.SSLCertVerificationError:
                return False
            writer.close()
            return True

        await client.until(is_taken)

    running(settings(tmp_path), test)


async def _is(client: Client, status: int, authorization: str) -> bool:
    return (await client.get("/version", authorization))[0] == status


def test_files_of_no_use_change_nothing_and_readyz_says_why(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        assert await client.why() == ""
        key = tmp_path / "http.pem"
        text = key.read_text()
        key.write_text(text[: len(text) // 2])
        (tmp_path / "token").write_text("short\n")

        async def is_told() -> bool:
            why = await client.why()
            return "keeps its old certificate" in why and "keeps its old token" in why

        await client.until(is_told)
        why = await client.why()
        assert "firn.http.ssl.keystore.location: " in why
        assert "http.pem: a PEM block does not end as it begins" in why
        assert "firn.http.token.file: " in why
        assert "the first line has 5 characters, and 16 are needed" in why
        assert "short" not in why
        key.write_text(text)
        (tmp_path / "token").unlink()
        await client.until(lambda: _says(client, "No such file or directory"))
        assert "certificate" not in await client.why()

    running(settings(tmp_path), test)


async def _says(client: Client, words: str) -> bool:
    return words in await client.why()


def test_readyz_names_a_certificate_that_ends_within_a_week(tmp_path: Path) -> None:
    CA.issue("localhost", days=2.5).write(tmp_path / "http.pem")

    async def test(client: Client) -> None:
        assert await client.why() == "the certificate of firn.http.listener ends in 2.5 days"

    running(settings(tmp_path), test)


def test_plain_http_is_not_answered_where_tls_is_expected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(client: Client) -> None:
        reader, writer = await asyncio.open_connection(client.host, client.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await reader.read() == b""
        writer.close()

    running(settings(tmp_path), test)
    assert "on firn.http.listener: TLS is expected here, and it sent HTTP" in caplog.text


def test_silent_connections_and_half_handshakes_keep_nobody_out(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        silent = [
            await asyncio.open_connection(client.host, client.port) for _ in range(2 * MOST_CONNECTIONS)
        ]
        for _, writer in silent[::2]:
            writer.write(b"\x16\x03\x01\x02\x00\x01")
        ended = [reader for reader, _ in silent]
        for _ in range(3):
            assert await client.get("/healthz") == (200, "ok\n")
        gone = 0
        for reader in ended[:MOST_CONNECTIONS]:
            try:
                gone += await asyncio.wait_for(reader.read(), 5) == b""
            except ConnectionResetError:
                gone += 1
        assert gone == MOST_CONNECTIONS, "the oldest made room"
        for _, writer in silent:
            writer.close()

    running(settings(tmp_path, timeout_s=20.0), test)


def test_a_handshake_that_does_not_end_is_closed(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        reader, writer = await asyncio.open_connection(client.host, client.port)
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()

    running(settings(tmp_path, timeout_s=0.1), test)


def test_a_long_answer_is_read_slowly_to_its_end(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        reader, writer = await client.connect()
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 40)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        text = b""
        while piece := await reader.read(1000):
            text += piece
        assert text.count(b"# TYPE firn_memory_limit_bytes gauge\nfirn_memory_limit_bytes") == 41
        writer.close()

    running(settings(tmp_path, token=False), test)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda at: (at / "token").unlink(), "firn.http.token.file: .*token: No such file or directory"),
        (lambda at: (at / "token").write_text(""), "0 characters, and 16 are needed"),
        (lambda at: (at / "token").write_text("a token of words\n"), "other characters than visible ones"),
        (lambda at: (at / "token").write_text("ü" * 20), "other characters than visible ones"),
        (lambda at: (at / "token").write_text("x" * 5000), "more than 4096 characters"),
        (lambda at: (at / "http.pem").unlink(), "firn.http.ssl.keystore.location: .*No such file"),
        (lambda at: (at / "http.pem").write_bytes(b"\x30\x82"), "http.pem is no PEM file"),
        (lambda at: (at / "http.pem").write_text(CA.issue().chain_pem), "0 private keys instead of one"),
        (
            lambda at: (at / "http.pem").write_text(CA.issue().key_pem() + CA.issue().pem),
            "the private key does not belong to the certificate",
        ),
        (lambda at: CA.issue().write(at / "http.pem", "locked"), "ssl.key.password is another"),
    ],
)  # fmt: skip
def test_files_of_no_use_prevent_the_start(
    tmp_path: Path, change: Callable[[Path], object], reason: str
) -> None:
    access = settings(tmp_path)
    change(tmp_path)
    with pytest.raises(ConfigError, match=reason) as error:
        running(access, lambda client: asyncio.sleep(0))
    assert "ü" not in str(error.value)


def test_a_locked_key_opens_with_its_password_and_may_stand_in_its_own_file(tmp_path: Path) -> None:
    issued = CA.issue("localhost")
    (tmp_path / "http.pem").write_text(issued.chain_pem)
    (tmp_path / "http.key").write_text(issued.key_pem("secret word"))
    access = settings(tmp_path, key=str(tmp_path / "http.key"), key_password=Password("secret word"))
    assert "secret word" not in repr(access)

    async def test(client: Client) -> None:
        assert (await client.get("/healthz"))[0] == 200

    running(access, test)


@pytest.mark.parametrize(("mode", "is_warned"), [(0o600, False), (0o640, True), (0o604, True)])
def test_a_token_that_others_may_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, is_warned: bool
) -> None:
    access = settings(tmp_path, tls=False)
    (tmp_path / "token").chmod(mode)
    with caplog.at_level(logging.DEBUG):
        running(access, lambda client: client.get("/version", f"Bearer {TOKEN}"))  # type: ignore[arg-type,return-value]
    assert ("others than its owner may read" in caplog.text) is is_warned
    assert TOKEN not in caplog.text
