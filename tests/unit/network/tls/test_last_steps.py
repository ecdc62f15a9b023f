"""Last step of a handshake: known by what it takes, and made by the loop, a few in a turn."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.network.tls.engine import OpenSslSeal
from service.network.tls.handshakes import Handshakes
from tests.support.tls_ends import End, shake
from tests.support.tls_pairs import authority, fake


def steps_of(
    folder: Path, *, client_auth: bool = False, curve: str = "", version: str = "TLSv1_3"
) -> list[bool]:
    """What the server says of each of its steps."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(authority().issue().write(folder / "server.pem"))
    if client_auth:
        server.verify_mode = ssl.CERT_OPTIONAL
        server.load_verify_locations(cadata=authority().pem)
    if curve:
        server.set_ecdh_curve(curve)
    client = ssl.create_default_context(cadata=authority().pem)
    client.maximum_version = ssl.TLSVersion[version]
    one = OpenSslSeal(client, server_side=False, server_hostname="localhost")
    other = OpenSslSeal(server, server_side=True)
    said, is_done = [], False
    one.handshake(b"")
    while not is_done:
        raw = bytearray(one.take_raw())
        said.append(other.is_last_step(raw))
        is_done = other.handshake(raw)
        one.handshake(other.take_raw())
    return said


def test_the_finished_of_tls_1_3_is_the_last_step(tmp_path: Path) -> None:
    assert steps_of(tmp_path) == [False, True]


def test_a_second_hello_is_no_last_step(tmp_path: Path) -> None:
    assert steps_of(tmp_path, curve="secp384r1") == [False, False, True]


def test_a_certificate_may_be_long_to_verify(tmp_path: Path) -> None:
    assert steps_of(tmp_path, client_auth=True) == [False, False]


def test_the_key_exchange_of_tls_1_2_is_long(tmp_path: Path) -> None:
    assert steps_of(tmp_path, version="TLSv1_2") == [False, False]


def test_a_client_makes_each_step_on_a_thread() -> None:
    client, server = fake()
    client.handshake(b"")
    server.handshake(client.take_raw())
    assert not client.is_last_step(bytearray(server.take_raw()))


def test_the_loop_makes_a_few_last_steps_in_a_turn_and_leaves_the_others_to_threads() -> None:
    async def run() -> None:
        handshakes = Handshakes(None, 10)
        assert [handshakes.may_end() for _ in range(18)] == [True] * 16 + [False] * 2
        await asyncio.sleep(0)
        assert handshakes.may_end()

    asyncio.run(run())


@pytest.mark.parametrize("may_end", [False, True])
def test_a_handshake_ends_on_the_loop_as_on_a_thread(monkeypatch: pytest.MonkeyPatch, may_end: bool) -> None:
    async def run() -> None:
        seals = fake()
        client, server = End(seals[0], is_server=False), End(seals[1])
        monkeypatch.setattr(server.side.handshakes, "may_end", lambda: may_end)
        handed_over: list[object] = []
        run_step = server.side.handshakes.run

        def run_noted(step: Callable[..., Any], *given: Any) -> asyncio.Future[Any]:
            handed_over.append(step)
            return run_step(step, *given)

        monkeypatch.setattr(server.side.handshakes, "run", run_noted)
        await shake(client, server)
        client.shell.write(b"clear")
        server.arrive(client.raw.take())
        assert server.clear.received == b"clear"
        assert len(handed_over) == (1 if may_end else 2)
        assert server.side.handshakes.under_way == 0

    asyncio.run(run())
