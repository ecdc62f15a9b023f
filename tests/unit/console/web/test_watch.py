"""Samples of nodes' HTTP listeners: one that hangs, and one that takes no more connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from service.base.clock import ManualClock
from service.client.node_http import PLAIN_HTTP
from service.console.web import watch
from service.console.web.watch import NodeListener, NodeMonitor

ANSWERS = {
    "/metrics": "up 1\n",
    "/readyz": '{"ready": true, "checks": {}, "findings": []}',
    "/turns": '{"longest": []}',
    "/version": '{"version": "1"}',
}


class Listener:
    """An HTTP listener that keeps its connections open; while it hangs, it answers nobody."""

    def __init__(self) -> None:
        self.hangs = False
        self.server: asyncio.Server | None = None
        self.url = ""

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                while self.hangs:
                    await asyncio.sleep(0.05)
                body = ANSWERS[head.split()[1].decode()]
                writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@asynccontextmanager
async def watched(count: int) -> AsyncIterator[tuple[NodeMonitor, list[Listener]]]:
    listeners = [Listener() for _ in range(count)]
    for one in listeners:
        await one.start()

    async def find() -> Sequence[NodeListener]:
        return [NodeListener(number, one.url) for number, one in enumerate(listeners)]

    monitor = NodeMonitor(find, ManualClock(), PLAIN_HTTP)
    try:
        yield monitor, listeners
    finally:
        for one in listeners:
            one.hangs = False
            assert one.server is not None
            one.server.close()


def test_a_listener_that_hangs_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "TIMEOUT_S", 1.0)
    monkeypatch.setattr(watch, "NODE_WAIT_S", 0.2)

    async def scenario() -> None:
        async with watched(2) as (monitor, (_, second)):
            await monitor.sample()
            assert [one.problem for one in monitor.nodes] == [None, None]
            first = monitor.nodes[0].between
            second.hangs = True
            began = time.monotonic()
            await monitor.sample()
            assert time.monotonic() - began < 0.9
            assert monitor.nodes[0].between is not first, "it has a new sample"
            while monitor.nodes[1].problem is None:
                await monitor.sample()
            assert f"{second.url}: no answer within 1 s" in str(monitor.nodes[1].problem)
            second.hangs = False
            while monitor.nodes[1].problem is not None:
                await monitor.sample()

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_listener_that_takes_no_more_connections_is_seen_though_old_ones_go_on() -> None:
    async def scenario() -> None:
        async with watched(1) as (monitor, (only,)):
            await monitor.sample()
            assert only.server is not None
            only.server.close()
            await monitor.sample()
            assert "cannot connect" in str(monitor.nodes[0].problem)

    asyncio.run(asyncio.wait_for(scenario(), 20))
