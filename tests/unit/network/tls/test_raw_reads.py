"""Raw bytes are read as far as there is space for what they say."""

from __future__ import annotations

import asyncio

import pytest

from simulator.seal import FakeSeal
from tests.support.tls_ends import End, shake


@pytest.mark.parametrize(
    ("room", "most_bytes"),
    [
        pytest.param(500, 65_536, id="of a short request the next ones come, too"),
        pytest.param(70_000, 69_500, id="of a long one what is missing"),
        pytest.param(1_000_000, 262_144, id="as much as the buffer takes"),
    ],
)
def test_one_read_takes_no_more_than_there_is_space_for(room: int, most_bytes: int) -> None:
    async def run() -> None:
        client = End(FakeSeal(server_side=False), is_server=False)
        server = End(FakeSeal(server_side=True), room=room)
        await shake(client, server)
        assert len(server.shell.get_buffer(-1)) == 65_536
        client.shell.write(bytes(500))
        server.arrive(client.raw.take())
        assert len(server.clear.received) == 500
        assert len(server.shell.get_buffer(-1)) == most_bytes

    asyncio.run(run())
