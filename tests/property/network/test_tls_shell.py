"""TLS transports over the simulator's seal and OpenSSL's: any split, any pause, any damage, any end."""

from __future__ import annotations

import asyncio
import random
import ssl

import pytest

from service.network.tls.shell import CLOSED, MOST_HANDSHAKE_BYTES, OPEN
from simulator.seal import HANDSHAKE, FakeSeal, sealed_record
from tests.support.tls_ends import End, shake, turn
from tests.support.tls_pairs import real

TEXT = bytes(range(256)) * 1000


def ends(*, is_real: bool = False, room: int = 1000) -> tuple[End, End]:
    if is_real:
        client, server = real(ssl.TLSVersion.TLSv1_3)
    else:
        client, server = FakeSeal(server_side=False), FakeSeal(server_side=True)
    return End(client, is_server=False, room=room), End(server, room=room)


async def deliver(chance: random.Random, source: End, target: End, raw: bytes) -> None:
    """Bring raw bytes over in random pieces, whenever the target reads; resume it at random."""
    at = 0
    while at < len(raw):
        if not target.raw.reading:
            await turn()
            if not target.raw.reading:
                target.shell.resume_reading()
                await turn()
            continue
        size = chance.choice((1, 3, 5, 6, 50, 1000, 16_400, 60_000))
        if chance.random() < 0.3:
            target.clear.pauses_after = chance.randint(1, 3)
        target.arrive(raw[at : at + size])
        at += size
    while target.shell.held_raw or not target.raw.reading:
        target.shell.resume_reading()
        await turn()


@pytest.mark.parametrize("is_real", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_clear_bytes_arrive_in_order_however_they_are_cut(seed: int, is_real: bool) -> None:
    async def run() -> None:
        chance = random.Random(seed)
        client, server = ends(
            is_real=is_real, room=chance.choice((1, 100, 1000, 70_000)) if seed % 4 else 5000
        )
        await shake(client, server)
        for source, target in ((client, server), (server, client)):
            written = bytearray()
            most = 2000 if len(target.clear._space) < 100 else 100_000
            while len(written) < most:
                piece = TEXT[: chance.choice((1, 200, 16_384, 40_000))]
                source.shell.write(piece)
                written += piece
            await deliver(chance, source, target, source.raw.take())
            assert target.clear.received == written

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(60))
def test_damage_ends_the_connection_and_no_byte_behind_it_is_told(seed: int) -> None:
    async def run() -> None:
        chance = random.Random(seed)
        client, server = ends()
        await shake(client, server)
        for _ in range(5):
            client.shell.write(TEXT[:3000])
        raw = bytearray(client.raw.take())
        at = chance.randrange(len(raw))
        raw[at] ^= 1 << chance.randrange(8)
        raw += bytes(70_000)  # for a length that has become longer
        server.arrive(bytes(raw))
        whole = at // 3009 * 3000
        assert server.clear.received == (TEXT[:3000] * 5)[:whole]
        assert server.raw.ended == "closed"
        assert len(server.side.reasons) == 1
        assert server.shell.state is CLOSED

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(40))
def test_damage_in_the_handshake_ends_the_connection(seed: int) -> None:
    async def run() -> None:
        chance = random.Random(seed)
        client, server = ends()
        await turn()
        raw = bytearray(client.raw.take())
        raw[chance.randrange(5, len(raw))] ^= 1 << chance.randrange(8)
        server.arrive(bytes(raw))
        await turn()
        assert server.raw.ended == "closed"
        assert server.clear.identity is None
        assert server.side.handshakes.under_way == 0
        assert len(server.side.reasons) == 1

    asyncio.run(run())


def test_an_end_without_close_notify_is_an_abort() -> None:
    async def run() -> None:
        client, server = ends()
        await shake(client, server)
        client.shell.write(b"half a request")
        server.arrive(client.raw.take()[:-1])
        assert server.shell.eof_received() is False
        assert server.raw.ended == "aborted"
        assert server.clear.told == []
        server.shell.connection_lost(None)
        assert server.clear.told == ["lost: None"]
        assert server.clear.received == b""

    asyncio.run(run())


def test_an_end_with_close_notify_leaves_what_is_owed() -> None:
    async def run() -> None:
        client, server = ends()
        await shake(client, server)
        server.clear.stays_at_eof = True
        client.shell.write(b"a request")
        client.shell.close()
        assert client.raw.ended == "closed"
        server.arrive(client.raw.take())
        assert server.clear.received == b"a request"
        assert server.clear.told == ["eof"]
        assert not server.raw.ended
        server.shell.resume_reading()
        await turn()
        assert server.clear.told == ["eof"], "an end is told once"
        server.shell.write(b"the answer")
        assert server.raw.take()
        server.shell.close()
        assert server.raw.ended == "closed"
        assert server.raw.take() == sealed_record(21, b"close_notify")

    asyncio.run(run())


def test_an_end_with_close_notify_closes_where_nothing_is_owed() -> None:
    async def run() -> None:
        client, server = ends()
        await shake(client, server)
        client.shell.close()
        server.arrive(client.raw.take())
        assert server.clear.told == ["eof"]
        assert server.raw.ended == "closed"

    asyncio.run(run())


def test_a_flood_of_records_that_bring_nothing_is_cut() -> None:
    async def run() -> None:
        client, server = ends()
        await shake(client, server)
        ticket = sealed_record(HANDSHAKE, b"key update")
        for _ in range(3):
            server.arrive(ticket * 64 + sealed_record(23, b"x"))
        assert server.raw.ended == ""
        server.arrive(ticket * 65)
        assert server.side.reasons == ["65 records in a row brought no byte"]
        assert server.raw.ended == "closed"

    asyncio.run(run())


def test_more_than_a_quarter_of_a_megabyte_before_the_handshake_ends_it() -> None:
    async def run() -> None:
        _, server = ends()
        hello = b"\x16\x03\x03\xff\xff"
        server.arrive(hello + bytes(65_000))
        for _ in range(3):
            server.shell._take_early(memoryview(bytes(65_000)))
        assert server.raw.ended == ""
        server.shell._take_early(memoryview(bytes(MOST_HANDSHAKE_BYTES)))
        assert server.raw.ended == "closed"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("first", "what"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "it sent HTTP"),
        (
            b"\x00\x00\x00\x1a\x00\x12\x00\x04\x00\x00\x00\x01\x00\x02me",
            "it sent a Kafka request without TLS",
        ),
        (b"SSH-2.0-OpenSSH", "it sent an unknown protocol"),
        (b"\x16\x16rubbish", "it sent an unknown protocol"),
    ],
)
def test_other_protocols_are_named_and_closed(first: bytes, what: str) -> None:
    async def run() -> None:
        _, server = ends()
        server.arrive(first)
        assert server.raw.ended == "closed"
        assert server.side.reasons[0].endswith(what)

    asyncio.run(run())


def test_half_a_hello_takes_nobodys_place_and_ends_with_the_time() -> None:
    async def run() -> None:
        client, server = ends()
        await turn()
        hello = client.raw.take()
        server.side.timeout_s = 0.02
        server = End(FakeSeal(server_side=True))
        server.side.timeout_s = 0.02
        server.shell._stop_timer()
        server.shell._begin_timer()
        server.arrive(hello[:-1])
        assert server.side.handshakes.under_way == 0
        await asyncio.sleep(0.05)
        assert server.raw.ended == "closed"
        assert server.side.reasons == ["the TLS handshake took too long"]

    asyncio.run(run())


def test_a_peer_that_says_nothing_is_no_failed_handshake() -> None:
    async def run() -> None:
        _, server = ends()
        server.shell.eof_received()
        server.shell.connection_lost(None)
        assert server.side.reasons == []

    asyncio.run(run())


def test_a_client_hears_why_there_is_no_connection() -> None:
    async def run() -> None:
        client, _ = ends()
        await turn()
        client.shell.eof_received()
        client.shell.connection_lost(None)
        assert client.side.reasons == ["it left before the end of the handshake"]

    asyncio.run(run())


def test_pauses_of_the_raw_transport_reach_the_writer() -> None:
    async def run() -> None:
        client, server = ends()
        await shake(client, server)
        assert server.shell.state is OPEN
        server.shell.pause_writing()
        server.shell.resume_writing()
        assert server.clear.told == ["pause", "resume"]

    asyncio.run(run())


def test_nothing_is_sent_before_the_handshake_or_behind_the_end() -> None:
    async def run() -> None:
        client, server = ends()
        server.shell.write(b"too early")
        assert server.raw.take() == b""
        await shake(client, server)
        server.shell.abort()
        server.shell.write(b"too late")
        assert server.raw.take() == b""

    asyncio.run(run())


def test_a_connection_that_is_not_admitted_is_not_read_and_has_no_time_limit() -> None:
    async def run() -> None:
        server = End(FakeSeal(server_side=True))
        assert server.shell._timer is not None
        waiting = End(FakeSeal(server_side=True))
        waiting.shell._stop_timer()
        waiting.shell.pause_reading()
        assert not waiting.raw.reading
        waiting.shell.resume_reading()
        assert waiting.raw.reading
        assert waiting.shell._timer is not None

    asyncio.run(run())
