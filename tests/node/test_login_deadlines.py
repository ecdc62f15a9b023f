"""The time for a handshake and a login together, on a listener of SASL_SSL: from accept to authenticated."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

from service.base.rate_limited_log import RateLimitedLog
from service.network.authenticating import ListenerLogins
from service.network.metrics import NetworkMetrics
from service.network.server import Server
from service.security.login_settings import make_servers
from service.security.scram import UnknownUsers
from tests.support.echo_server import receive, run
from tests.support.login_frames import message, sized
from tests.support.logins import Listener, answer_versions, bobs
from tests.support.tls_server import client_context, settings, tls_listener

TIMEOUT_S = 0.8


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Server]:
    loop = asyncio.get_running_loop()
    listener, metrics = Listener(timeout_ms=int(1000 * TIMEOUT_S)), NetworkMetrics()
    logins = ListenerLogins(
        listener.settings,
        make_servers(listener.settings, bobs, UnknownUsers(b"cluster"), lambda: "of-the-server"),
        "SASL_SSL",
        metrics.logins_of("SASL"),
        now=loop.time,
        now_ms=lambda: int(time.time() * 1000),
        warnings=RateLimitedLog(logging.getLogger("tests"), now=loop.time),
    )
    logins.answer_versions = answer_versions
    with ThreadPoolExecutor(1) as pool:
        server = Server(
            "127.0.0.1", 0, listener.handle,
            listener="SASL", metrics=metrics, logins=logins,
            tls=tls_listener(settings(folder), pool, TIMEOUT_S, None),
        )  # fmt: skip
        await server.start()
        try:
            yield server
        finally:
            await server.close(0.1)


async def shaken_late(server: Server, after_s: float) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect, say nothing for a while, and then shake hands."""
    raw = socket.create_connection(("127.0.0.1", server.port), 5)
    raw.setblocking(False)
    await asyncio.sleep(after_s)
    return await asyncio.open_connection(sock=raw, ssl=client_context(), server_hostname="localhost")


def test_handshake_and_login_have_one_time_out_together(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            began = time.monotonic()
            reader, writer = await shaken_late(server, TIMEOUT_S / 2)
            writer.write(sized(message("versions", 0)))
            await receive(reader)
            try:
                assert await reader.read() == b""
            except (ConnectionError, ssl.SSLError):
                """cut is closed, too"""
            assert TIMEOUT_S * 0.9 < time.monotonic() - began < TIMEOUT_S * 1.4
            assert server.counters.logins["SASL"].late == 1
            writer.close()

    run(scenario())


def test_a_client_in_time_with_both_stays(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            reader, writer = await shaken_late(server, TIMEOUT_S / 2)
            for number, name in enumerate(("versions", "plain", "right")):
                writer.write(sized(message(name, number)))
                await receive(reader)
            await asyncio.sleep(TIMEOUT_S)
            writer.write(sized(message("metadata", 9)))
            assert await receive(reader)
            assert server.counters.logins["SASL"].late == 0
            writer.close()

    run(scenario())
