"""A newcomer gets a place among the handshakes a second after the greediest fell silent, not at their end."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from service.network.tls.handshakes import Handshakes
from service.network.tls.shell import TlsTransport
from tests.support.tls_ends import End, RawTransport, Recorder, turn
from tests.support.tls_pairs import fake
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


class Held(Executor):
    """Runs nothing until the test says so."""

    def __init__(self) -> None:
        self.steps: list[tuple[Future[Any], Any]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.steps.append((future, lambda: fn(*args, **kwargs)))
        return future


def test_steps_of_connections_that_were_closed_keep_their_places_until_they_are_done() -> None:
    async def run() -> None:
        pool = Held()
        handshakes = Handshakes(pool, 3)
        ends = []
        for _ in range(20):
            client, server = fake()
            client.handshake(b"")
            ends.append(End(server))
            ends[-1].side.handshakes = handshakes
            ends[-1].arrive(client.take_raw())
            if len(ends) <= 10:
                ends[-1].shell.abort()
        assert len(pool.steps) == 3, "however many come and are closed"
        assert (handshakes.under_way, handshakes.waiting) == (3, 10)
        for future, step in pool.steps[:2]:
            future.set_result(step())
        await turn()
        assert len(pool.steps) == 5
        assert (handshakes.under_way, handshakes.waiting) == (3, 8)
        for one in ends:
            one.shell.abort()
        assert (handshakes.under_way, handshakes.waiting) == (3, 0)
        for future, _ in pool.steps[2:]:
            future.cancel()
        await turn()
        assert (handshakes.under_way, handshakes.waiting) == (0, 0)

    asyncio.run(run())
