"""A newcomer gets a place among the handshakes a second after the greediest fell silent, not at their end."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from service.network.tls.handshakes import Handshakes
from service.network.tls.shell import TlsTransport
from tests.support.tls_ends import RawTransport, Recorder
from tests.support.tls_server import settings, tls_listener
from tests.unit.network.tls.test_handshakes import Shaking


def test_a_newcomer_who_finds_nobody_silent_for_a_second_waits_no_longer_than_that() -> None:
    async def run() -> None:
        handshakes = Handshakes(None, 3)
        greedy = [Shaking(handshakes, "greedy") for _ in range(3)]
        for one in greedy:
            one.silent_since_s = asyncio.get_running_loop().time()
        newcomer = Shaking(handshakes, "new")
        await asyncio.sleep(1.5)
        assert newcomer.has_begun

    asyncio.run(run())


def test_addresses_of_one_network_of_ipv6_are_one(tmp_path: Path) -> None:
    async def run() -> None:
        with ThreadPoolExecutor(1) as pool:
            listener = tls_listener(settings(tmp_path), pool, 5.0, None)
            listener.start(asyncio.get_running_loop())
            found = []
            for address in (
                "2001:db8::1",
                "2001:db8::ffff:1",
                "2001:db8:0:1::1",
                "::ffff:192.0.2.1",
                "192.0.2.1",
            ):
                transport = TlsTransport(asyncio.get_running_loop(), listener, Recorder())
                transport.connection_made(RawTransport(address))
                found.append(transport.address)
                transport.abort()
            assert found == ["2001:db8::", "2001:db8::", "2001:db8:0:1::", "192.0.2.1", "192.0.2.1"]

    asyncio.run(run())
