"""Two ends of a cipher, real or fake, that shake hands in memory."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import cache

from service.network.tls.engine import OpenSslSeal, Seal
from simulator.seal import FakeSeal
from tests.support.certificates import Authority

Pair = tuple[Seal, Seal]
"""client and server"""


@cache
def authority() -> Authority:
    return Authority()


@cache
def contexts(version: ssl.TLSVersion) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    import tempfile
    from pathlib import Path

    client = ssl.create_default_context(cadata=authority().pem)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        server.load_cert_chain(authority().issue().write(Path(folder) / "server.pem"))
    client.maximum_version = client.minimum_version = version
    return client, server


def real(version: ssl.TLSVersion) -> Pair:
    client, server = contexts(version)
    return (
        OpenSslSeal(client, server_side=False, server_hostname="localhost"),
        OpenSslSeal(server, server_side=True),
    )


def fake() -> Pair:
    return FakeSeal(server_side=False), FakeSeal(server_side=True, certificate=b"of the server")


MAKERS: dict[str, Callable[[], Pair]] = {
    "fake": fake,
    "TLSv1.2": lambda: real(ssl.TLSVersion.TLSv1_2),
    "TLSv1.3": lambda: real(ssl.TLSVersion.TLSv1_3),
}


def shake(pair: Pair, cut: int = 1 << 20) -> None:
    """Shake hands; what goes to the other end goes in pieces of `cut` bytes."""
    client, server = pair
    done = {"client": client.handshake(b""), "server": False}
    for _ in range(10):
        for name, one, other in (("server", server, client), ("client", client, server)):
            raw = other.take_raw()
            for at in range(0, len(raw), cut):
                if done[name]:
                    one.feed(memoryview(raw[at:]))
                    one.keep()
                    break
                done[name] = one.handshake(raw[at : at + cut])
        if all(done.values()):
            return
    raise AssertionError("the handshake does not end")


def clear(seal: Seal, room: int = 1 << 16) -> bytes:
    """All clear bytes that are ready, read through a view of `room` bytes."""
    found = bytearray()
    while seal.is_ready:
        view = memoryview(bytearray(room))
        found += view[: seal.read_into(view)]
    return bytes(found)
