"""TLS transports over both seals: split and torn at every byte, every bit flipped, and what trails."""

from __future__ import annotations

import asyncio

import pytest

from service.network.tls.shell import CLOSED, OPEN
from simulator.seal import FakeSeal, sealed_record
from tests.support.tls_ends import End, shake, turn
from tests.support.tls_pairs import MAKERS

FIRST, SECOND = b"one request", b"and another one"
HELLO, FINISHED = sealed_record(22, b"hello"), sealed_record(22, b"finished:")
WHOLE = HELLO + FINISHED + sealed_record(23, FIRST) + sealed_record(23, SECOND)
"""all that a client of the fake seal sends"""
CLEAR = ((len(HELLO + FINISHED), 0), (len(WHOLE) - 9 - len(SECOND), 11), (len(WHOLE), 26))
"""by the raw bytes that have come: how many clear ones that makes"""


async def arrive(server: End, *pieces: bytes) -> None:
    """Bring pieces to the server, each when it reads."""
    for piece in pieces:
        await turn()
        if server.raw.ended:
            return
        server.arrive(piece)
    await turn()


def clear_bytes(raw: int) -> int:
    return max((clear for needed, clear in CLEAR if raw >= needed), default=0)


def test_the_fake_client_sends_these_very_bytes() -> None:
    async def run() -> None:
        client, server = End(FakeSeal(server_side=False), is_server=False), End(FakeSeal(server_side=True))
        await turn()
        assert client.raw.out == HELLO
        await shake(client, server)
        client.shell.write(FIRST)
        assert client.raw.take() == sealed_record(23, FIRST)
        assert server.shell.state is OPEN

    asyncio.run(run())


def test_a_connection_is_the_same_wherever_its_bytes_are_split() -> None:
    async def run() -> None:
        for first in range(len(WHOLE) + 1):
            for second in range(first, len(WHOLE) + 1, 7):
                server = End(FakeSeal(server_side=True), room=1 + first % 40)
                # What comes behind the handshake's last byte, but in one piece with it, waits for its end.
                await arrive(server, WHOLE[:first], WHOLE[first:second], WHOLE[second:])
                assert server.clear.received == FIRST + SECOND, (first, second)
                assert server.shell.state is OPEN
                assert server.side.reasons == []

    asyncio.run(run())


def test_a_connection_that_is_torn_tells_whole_records_alone() -> None:
    async def run() -> None:
        for at in range(len(WHOLE) + 1):
            server = End(FakeSeal(server_side=True))
            await arrive(server, WHOLE[:at])
            server.shell.eof_received()
            server.shell.connection_lost(None)
            await turn()
            assert server.clear.received == (FIRST + SECOND)[: clear_bytes(at)], at
            assert server.clear.told == [f"lost: {server.shell._error}"], "no end was told, so it is an abort"
            assert server.side.handshakes.under_way == 0

    asyncio.run(run())


def test_no_flipped_bit_changes_a_clear_byte() -> None:
    async def run() -> None:
        starts = (0, len(HELLO), len(HELLO + FINISHED), CLEAR[1][0], len(WHOLE))
        for at in range(8 * len(WHOLE)):
            raw = bytearray(WHOLE)
            raw[at // 8] ^= 1 << at % 8
            server = End(FakeSeal(server_side=True))
            await arrive(server, bytes(raw), *[bytes(30_000)] * 3)  # a longer length has its bytes
            before = max(start for start in starts if start <= at // 8)
            # A record that came whole together with a broken one may go with it.
            assert server.clear.received in (b"", (FIRST + SECOND)[: clear_bytes(before)]), at
            assert server.raw.ended == "closed", at
            assert server.shell.state is CLOSED
            assert (server.clear.identity is None) is (at // 8 < len(HELLO + FINISHED))
            assert len(server.side.reasons) == 1

    asyncio.run(run())


@pytest.mark.parametrize("kind", MAKERS)
def test_requests_are_the_same_wherever_they_are_split(kind: str) -> None:
    async def run() -> None:
        at, size = 0, 1
        while at <= size:
            clients, servers = MAKERS[kind]()
            client, server = End(clients, is_server=False), End(servers)
            await shake(client, server)
            client.shell.write(FIRST)
            client.shell.write(SECOND)
            raw = client.raw.take()
            size = len(raw)
            server.arrive(raw[:at])
            server.arrive(raw[at:])
            assert server.clear.received == FIRST + SECOND, at
            at += 1 if kind == "fake" else 5

    asyncio.run(run())


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("what", ["rubbish", "a record", "another end", "a hello"])
def test_bytes_behind_the_end_are_not_told(kind: str, what: str) -> None:
    async def run() -> None:
        clients, servers = MAKERS[kind]()
        client, server = End(clients, is_server=False), End(servers)
        await shake(client, server)
        server.clear.stays_at_eof = True
        client.shell.write(FIRST)
        record = client.raw.take()
        client.shell.close()
        trail = {"rubbish": bytes(50), "a record": record, "another end": b"", "a hello": HELLO}[what]
        end = client.raw.take()
        server.arrive(record + end + (trail or end))
        await turn()
        assert server.clear.received == FIRST
        assert server.clear.told == ["eof"]
        server.shell.write(SECOND)  # what is owed still goes out
        assert server.raw.take()

    asyncio.run(run())
