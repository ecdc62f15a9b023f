"""Logins of a node: `python -m bench.logins [--mechanism SCRAM-SHA-256] [--logins N] [--connections C]`

Connects, logs in and disconnects, C connections at a time, and prints how many logins a second a node does
and what each costs its processor. This side derives its keys once: its own PBKDF2, two milliseconds of a
real client, is not measured. `make install` and nothing else is needed.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import hmac
import os
import tempfile
import time
from pathlib import Path

from service.client import sasl
from service.security.login_settings import MECHANISMS
from service.security.scram import hash_of, salted_password
from tests.support.secured_firn import SecuredFirn, secured_firn

_TICKS = os.sysconf("SC_CLK_TCK")


class Keys:
    """The client's keys of one salt, derived once."""

    def __init__(self, mechanism: str, password: str) -> None:
        self._mechanism, self._password = mechanism, password.encode()
        self._salted: dict[bytes, bytes] = {}

    def proof(self, bare: bytes, answer: bytes) -> bytes:
        """Return the final message."""
        given = dict(part.split(b"=", 1) for part in answer.split(b","))
        salt, algorithm = base64.b64decode(given[b"s"]), hash_of(self._mechanism)
        salted = self._salted.get(salt)
        if salted is None:
            salted = salted_password(self._mechanism, self._password, salt, int(given[b"i"]))
            self._salted[salt] = salted
        client_key = hmac.digest(salted, b"Client Key", algorithm)
        own = b"c=biws,r=" + given[b"r"]
        signature = hmac.digest(
            hashlib.new(algorithm, client_key).digest(), b",".join((bare, answer, own)), algorithm
        )
        made = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return own + b",p=" + base64.b64encode(made)


async def log_in(host: str, port: int, mechanism: str, keys: Keys) -> None:
    """One login by SCRAM, or by PLAIN, on a connection of its own."""
    reader, writer = await asyncio.open_connection(host, port)

    async def exchange(frame: bytes) -> bytes:
        writer.write(frame)
        return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))

    code, _ = sasl.parse_handshake(await exchange(sasl.handshake_frame(1, "bench", mechanism)), 1)
    assert not code
    if mechanism == "PLAIN":
        last = await exchange(sasl.authenticate_frame(2, "bench", b"\0alice\0secret"))
    else:
        bare = b"n=bob,r=" + base64.b64encode(os.urandom(18))
        first = await exchange(sasl.authenticate_frame(2, "bench", b"n,," + bare))
        answer = sasl.parse_authenticate(first, 2).data
        last = await exchange(sasl.authenticate_frame(2, "bench", keys.proof(bare, answer)))
    given = sasl.parse_authenticate(last, 2)
    assert not given.code, given.message
    writer.close()


def cpu_s(node: SecuredFirn) -> float:
    fields = Path(f"/proc/{node.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


async def play(node: SecuredFirn, mechanism: str, logins: int, connections: int) -> None:
    host, _, port = node.addresses["SASL_PLAINTEXT"].rpartition(":")
    keys = Keys(mechanism, "pencil")
    left = logins

    async def one_after_the_other() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await log_in(host, int(port), mechanism, keys)

    await log_in(host, int(port), mechanism, keys)
    before, began = cpu_s(node), time.perf_counter()
    await asyncio.gather(*(one_after_the_other() for _ in range(connections)))
    took, used = time.perf_counter() - began, cpu_s(node) - before
    print(
        f"{mechanism}: {logins / took:.0f} logins a second, {used / logins * 1e6:.0f} us of the node's "
        f"processor each: {logins / used:.0f} a second and core"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure logins.")
    parser.add_argument("--mechanism", action="append", choices=MECHANISMS)
    parser.add_argument("--logins", type=int, default=5000)
    parser.add_argument("--connections", type=int, default=32)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, secured_firn(Path(folder) / "node") as node:
        for mechanism in asked.mechanism or MECHANISMS:
            asyncio.run(play(node, mechanism, asked.logins, asked.connections))


if __name__ == "__main__":
    main()
