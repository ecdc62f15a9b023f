"""The asyncio connection while its session is set up."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from service.client.async_connection import AsyncConnection, ConnectionLimits, PeerFailed, ReceiveBudget
from service.client.session import ClientSession
from service.network.metrics import ChannelMetrics


class Wire(asyncio.Transport):
    """Takes what is written; nothing is behind it."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return None

    def write(self, data: Any) -> None:
        pass

    def abort(self) -> None:
        pass


def feed(connection: AsyncConnection, data: bytes) -> None:
    """Let the bytes arrive, as far as the connection reads at a time."""
    while data:
        view = connection.get_buffer(-1)
        count = min(len(view), len(data))
        view[:count] = data[:count]
        connection.buffer_updated(count)
        data = data[count:]


def test_a_second_answer_while_a_login_is_worked_on_ends_the_connection() -> None:
    async def scenario() -> None:
        lost: list[Exception] = []
        connection = AsyncConnection(
            ClientSession("b:1", "me"),
            asyncio.get_running_loop(),
            ConnectionLimits(8, 1 << 20),
            ReceiveBudget(1 << 20),
            ChannelMetrics(),
            lambda _, error: lost.append(error),
        )
        connection.connection_made(Wire())
        exchange = asyncio.ensure_future(connection.exchange(connection.session.start()))
        await asyncio.sleep(0)
        answer = struct.pack(">ii", 8, 1) + bytes(4)
        feed(connection, answer)
        assert await exchange == answer[4:]
        assert not lost
        feed(connection, answer)  # the session has not taken the first one yet
        assert not connection.is_open
        assert isinstance(lost[0], PeerFailed)
        assert "b:1 answers with garbage: 8 bytes that answer no request" in str(lost[0])

    asyncio.run(scenario())
