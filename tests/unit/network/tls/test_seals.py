"""One contract for OpenSSL's seal and the simulator's."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from service.network.tls.engine import SEALED_AT_ONCE_BYTES, Seal, SealBroken
from tests.support.tls_pairs import MAKERS, Pair, clear, real, shake

TEXT = bytes(range(256)) * 200  # 51,200 bytes: four records


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Callable[[], Pair]:
    return MAKERS[request.param]


def sealed(seal: Seal, data: bytes) -> bytes:
    return b"".join(
        seal.write(data[at : at + SEALED_AT_ONCE_BYTES]) for at in range(0, len(data), SEALED_AT_ONCE_BYTES)
    )


@pytest.mark.parametrize("cut", [1, 7, 1000, 1 << 20])
def test_handshakes_end_however_their_bytes_are_cut(make: Callable[[], Pair], cut: int) -> None:
    client, server = make()
    shake((client, server), cut)
    assert clear(server) == clear(client) == b""
    server.feed(memoryview(client.write(b"to the server")))
    client.feed(memoryview(server.take_raw() + server.write(b"to the client")))
    assert clear(server) == b"to the server"
    assert clear(client) == b"to the client"


@pytest.mark.parametrize("seed", range(20))
def test_clear_bytes_are_the_same_however_raw_bytes_are_cut(make: Callable[[], Pair], seed: int) -> None:
    chance = random.Random(seed)
    client, server = make()
    shake((client, server))
    data = TEXT[: chance.choice((1, 100, 16_384, 16_385, 51_200))]
    raw = sealed(client, data)
    found, at = b"", 0
    while at < len(raw):
        size = chance.choice((1, 4, 5, 6, 100, 16_000, 40_000))
        scratch = bytearray(raw[at : at + size])
        at += len(scratch)
        server.feed(memoryview(scratch))
        if chance.random() < 0.3:
            server.keep()
        else:
            found += clear(server, chance.choice((1, 1000, 1 << 16)) if len(data) < 1000 else 1 << 16)
        scratch[:] = bytes(len(scratch))  # the scratch is used again
    assert found + clear(server) == data


def test_a_torn_record_says_nothing_until_it_is_whole(make: Callable[[], Pair]) -> None:
    client, server = make()
    shake((client, server))
    clear(server)
    raw = client.write(b"secret")
    for at in range(len(raw) - 1):
        server.feed(memoryview(raw[at : at + 1]))
        assert clear(server) == b""
    server.feed(memoryview(raw[-1:]))
    assert clear(server) == b"secret"
    assert not server.is_ready


def test_a_flipped_bit_breaks_the_seal(make: Callable[[], Pair]) -> None:
    for at in range(0, 31, 3):
        client, server = make()
        shake((client, server))
        raw = bytearray(client.write(b"ten letters") * 1)
        raw[min(at, len(raw) - 1)] ^= 1 << (at % 8)
        raw += client.write(b"x" * 16_384) * 2  # a longer length has its bytes
        server.feed(memoryview(raw))
        with pytest.raises(SealBroken):
            clear(server)


def test_a_record_that_comes_twice_breaks_the_seal() -> None:
    for version in MAKERS:
        if version == "fake":
            continue
        client, server = MAKERS[version]()
        shake((client, server))
        server.feed(memoryview(client.write(b"once") * 2))
        with pytest.raises(SealBroken):
            clear(server)


def test_the_end_is_told_and_what_follows_it_is_not_read(make: Callable[[], Pair]) -> None:
    client, server = make()
    shake((client, server))
    server.feed(memoryview(client.write(b"last words") + client.close_notify() + b"rubbish"))
    assert clear(server) == b"last words"
    assert server.is_ended
    assert not server.is_ready
    client.feed(memoryview(server.take_raw() + server.write(b"an answer")))
    assert clear(client) == b"an answer"


def test_bytes_without_an_end_are_no_end(make: Callable[[], Pair]) -> None:
    client, server = make()
    shake((client, server))
    server.feed(memoryview(client.write(b"words")))
    assert clear(server) == b"words"
    assert not server.is_ended


def test_garbage_breaks_the_handshake(make: Callable[[], Pair]) -> None:
    for garbage in (b"\x16\x03\x01\x00\x05hello", b"\x17\x03\x03\x00\x05hello", bytes(100)):
        _, server = make()
        with pytest.raises(SealBroken):
            server.handshake(garbage)


def test_clear_bytes_right_behind_the_handshake_are_not_lost(make: Callable[[], Pair]) -> None:
    client, server = make()
    done = client.handshake(b"")
    while not done:
        server.handshake(client.take_raw())
        done = client.handshake(server.take_raw())
    assert server.handshake(client.take_raw() + client.write(b"first") + client.write(b"second"))
    assert clear(server) == b"firstsecond"


def test_a_record_that_is_too_long_breaks_the_seal() -> None:
    import ssl

    client, server = real(ssl.TLSVersion.TLSv1_3)
    shake((client, server))
    server.feed(memoryview(b"\x17\x03\x03\xff\xff"))
    with pytest.raises(SealBroken, match="a record of 65535 bytes"):
        clear(server)
