"""Attacks on a listener of SASL_SSL: after each memory, descriptors and an innocent client are as before."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import random
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from statistics import median, quantiles

import pytest

from service.base.rate_limited_log import RateLimitedLog
from service.network.authenticating import ListenerLogins
from service.network.metrics import NetworkMetrics
from service.network.server import Server
from service.security.login_settings import make_servers
from service.security.scram import UnknownUsers
from tests.support.login_frames import authenticate, message, sized
from tests.support.logins import Listener, answer_versions, bobs
from tests.support.processes import wait_until
from tests.support.tls_server import client_context, receive, settings, tls_listener

TIMEOUT_S = 2.0
LOGIN = ("versions", "plain", "right")
ENDS = (ssl.SSLError, ConnectionError, EOFError, TimeoutError, BrokenPipeError)


class Siege:
    """A server on a thread, an innocent client of it on another, and what an attack may not cost."""

    def __init__(self, folder: Path) -> None:
        self.listener = Listener(
            timeout_ms=int(1000 * TIMEOUT_S), failed_delay_ms=20, max_reauth_ms={"PLAIN": 600_000}
        )
        self.metrics = NetworkMetrics()
        self.context = client_context()
        self._pool = ThreadPoolExecutor(2)
        self._tls = tls_listener(settings(folder), self._pool, TIMEOUT_S, None)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.server = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        self.port = self.server.port
        self._innocent = threading.Thread(target=self._ask)
        self._is_over = threading.Event()
        self._numbers = count(1000)
        self.took_s: list[float] = []
        self.failure: BaseException | None = None
        self._innocent.start()
        wait_until("the innocent client", lambda: len(self.took_s) > 20, 20)
        self.usual_s = median(self.took_s)
        self.open_files = len(os.listdir("/proc/self/fd"))

    async def _start(self) -> Server:
        loop = self._loop
        logins = ListenerLogins(
            self.listener.settings,
            make_servers(self.listener.settings, bobs, UnknownUsers(b"cluster"), lambda: "of-the-server"),
            "SASL_SSL",
            self.metrics.logins_of("SASL"),
            now=loop.time,
            now_ms=lambda: int(time.time() * 1000),
            warnings=RateLimitedLog(logging.getLogger("tests"), now=loop.time),
        )
        logins.answer_versions = answer_versions
        server = Server(
            "127.0.0.1", 0, self.listener.handle,
            listener="SASL", metrics=self.metrics, logins=logins, tls=self._tls,
        )  # fmt: skip
        await server.start()
        return server

    def _ask(self) -> None:
        """Ask again and again on one connection, as somebody who has logged in before the attack."""
        try:
            with self.secured() as conn:
                self.log_in(conn)
                while not self._is_over.is_set():
                    began = time.monotonic()
                    conn.sendall(sized(message("metadata", next(self._numbers))))
                    answer(conn)
                    self.took_s.append(time.monotonic() - began)
                    time.sleep(0.005)
        except BaseException as e:
            self.failure = e

    # -- what attackers use

    def plain(self, source: str = "127.0.0.1") -> socket.socket:
        conn = socket.create_connection(("127.0.0.1", self.port), 20, (source, 0))
        conn.settimeout(20)
        return conn

    def secured(self) -> ssl.SSLSocket:
        return self.context.wrap_socket(self.plain(), server_hostname="localhost")

    def log_in(self, conn: socket.socket) -> None:
        for number, name in enumerate(LOGIN):
            conn.sendall(sized(message(name, number)))
            answer(conn)

    def sends(self, *parts: bytes) -> bytes:
        """Send this on a connection of its own; return what comes until it is closed."""
        found = b""
        with suppress(*ENDS), self.secured() as conn:
            for one in parts:
                conn.sendall(one)
            while piece := conn.recv(1 << 16):
                found += piece
        return found

    # -- the end

    def check(self) -> None:
        """Compare with the time before the attack; a newcomer is let in."""
        wait_until("the attackers' end", lambda: self.server.connection_count == 1, 4 * TIMEOUT_S)
        began = time.monotonic()
        with self.secured() as conn:
            self.log_in(conn)
        assert time.monotonic() - began < TIMEOUT_S, "a newcomer"
        wait_until("the newcomer's end", lambda: self.server.connection_count == 1, 20)
        assert self.server.request_memory_bytes == 0
        handshakes = self._tls.handshakes
        assert (handshakes.under_way, handshakes.waiting, len(self._tls.handshakes._by_address)) == (0, 0, 0)
        assert len(os.listdir("/proc/self/fd")) <= self.open_files + 1
        known = len(self.took_s)
        wait_until("the innocent client to go on", lambda: len(self.took_s) > known + 30, 20)
        assert self.failure is None
        assert median(self.took_s[known:]) < 5 * self.usual_s + 0.05, "as before"
        assert quantiles(self.took_s, n=100)[-1] < TIMEOUT_S, "nor much longer amid the attack"
        principals = {who for who, _ in self.listener.asked}
        assert principals == {"User:alice"}, "nobody is served who has not logged in"

    def close(self) -> None:
        self._is_over.set()
        self._innocent.join()
        asyncio.run_coroutine_threadsafe(self.server.close(0.1), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._pool.shutdown()


def answer(conn: socket.socket) -> bytes:
    return receive(conn, struct.unpack(">i", receive(conn, 4))[0])


def stream(*names: str) -> bytes:
    return b"".join(sized(message(name, number)) for number, name in enumerate(names))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def siege(tmp_path: Path) -> Iterator[Siege]:
    made = Siege(tmp_path)
    try:
        yield made
    finally:
        made.close()


def produce_before_between_and_behind(siege: Siege) -> None:
    for names in (
        ("produce",) * 500,
        ("versions", *("produce",) * 500, "plain", "right"),
        ("versions", "plain", *("produce",) * 500, "right", "produce"),
        ("versions", "plain", "wrong", *("produce",) * 500),
    ):
        siege.sends(stream(*names))


def a_crowd_that_says_nothing_a_byte_or_half_a_hello(siege: Siege) -> None:
    with ExitStack() as stack:
        crowd = [stack.enter_context(siege.plain(f"127.1.{n // 250}.{n % 250 + 1}")) for n in range(1500)]
        for number, one in enumerate(crowd):
            if number % 3:
                one.sendall(bytes.fromhex("16030102000100")[: 7 if number % 3 == 1 else 1])
        logged = [stack.enter_context(siege.secured()) for _ in range(20)]
        for one in logged:
            one.sendall(stream("versions") + struct.pack(">i", 500))
        ends = time.monotonic() + TIMEOUT_S + 1
        while time.monotonic() < ends:
            for one in (*crowd[2::30], *logged):
                with suppress(*ENDS):
                    one.send(b"\x03")
            time.sleep(0.1)
        wait_until("their end", lambda: siege.server.connection_count == 1, 4 * TIMEOUT_S)


def tokens_that_are_large_claim_much_or_do_not_end(siege: Siege) -> None:
    before = resident_bytes()
    begin = stream("versions", "plain")
    for _ in range(20):
        siege.sends(begin, struct.pack(">i", 2**31 - 1), bytes(100_000))
        siege.sends(begin, struct.pack(">i", 524_289), bytes(524_289))
        siege.sends(begin, sized(authenticate(1, bytes(524_288 - 50), 3)))
    for _ in range(10):
        siege.sends(begin, b"".join(sized(authenticate(2, b"x", number)) for number in range(1000)))
    scram = stream("versions", "scram")
    for _ in range(10):
        siege.sends(scram, b"".join(sized(authenticate(2, b"n,,n=bob,r=x", n)) for n in range(1000)))
    assert resident_bytes() - before < 64 << 20


def bytes_that_are_no_tls(siege: Siege) -> None:
    chance = random.Random(7)
    for _ in range(300):
        with suppress(*ENDS), siege.plain() as conn:
            size = chance.randrange(1, 400)
            head = b"\x16\x03\x01" + struct.pack(">H", size) if chance.random() < 0.8 else b""
            conn.sendall(head + chance.randbytes(size))
            conn.settimeout(2 * TIMEOUT_S)
            conn.recv(100)


def tokens_of_plain_and_scram_that_are_wrong(siege: Siege) -> None:
    begin = {name: stream("versions", name) for name in ("plain", "scram")}
    tokens = {
        "plain": (
            b"", b"\0", b"alice", b"\0alice", b"\0alice\0secret\0", b"\0\0\0\0", b"bob\0alice\0secret",
            b"\0alice\0", b"\0\0secret", b"\0\xff\xfe\0secret", b"\0alice\0wrong", b"\0nobody\0secret",
        ),
        "scram": (
            b"n,,n=bob", b"y,,n=bob,r=x", b"p=tls-unique,,n=bob,r=x", b"n,a=eve,n=bob,r=x", b"n,,n=,r=x",
            b"n,,n=bob,r=", b"n,,n=b=2Xb,r=x", b"\xff" * 100, b"n,,m=x,n=bob,r=x", b"n,,n=bob,r=x,,",
        ),
    }  # fmt: skip
    with ThreadPoolExecutor(8) as attackers:
        runs = [
            attackers.submit(
                siege.sends, begin[mechanism], sized(authenticate(1, token, 2)), stream("metadata")
            )
            for mechanism, wrong in tokens.items()
            for token in wrong * 3
        ]
        found = [one.result(60) for one in runs]
    assert len(found) == 3 * 22
    final = base64.b64encode(b"n,,")
    proofs = (
        b"",
        b"AA==",
        base64.b64encode(bytes(31)),
        base64.b64encode(bytes(32)),
        base64.b64encode(bytes(64)),
    )
    for proof in proofs:
        last = b"c=" + final + b",r=xof-the-server,p=" + proof
        siege.sends(
            begin["scram"],
            sized(authenticate(1, b"n,,n=bob,r=x", 2)),
            sized(authenticate(1, last, 3)),
            stream("produce"),
        )


def reauthentications_without_end(siege: Siege) -> None:
    chaff = b"".join(sized(message("plain", number)) for number in range(10, 510))
    with siege.secured() as conn:
        siege.log_in(conn)
        conn.sendall(stream("plain", "right") + chaff)
        for _ in range(502):
            answer(conn)
        conn.sendall(sized(message("metadata", 9)))
        answer(conn)
    for names in (("scram", "token"), ("plain", "wrong"), ("plain", "metadata"), ("plain", "produce")):
        siege.sends(stream(*LOGIN, *names, "produce"))


def connections_from_one_address_and_from_a_thousand(siege: Siege) -> None:
    for number in range(1000):
        siege.plain().close()
        siege.plain(f"127.2.{number // 250}.{number % 250 + 1}").close()


ATTACKS = (
    produce_before_between_and_behind,
    a_crowd_that_says_nothing_a_byte_or_half_a_hello,
    tokens_that_are_large_claim_much_or_do_not_end,
    bytes_that_are_no_tls,
    tokens_of_plain_and_scram_that_are_wrong,
    reauthentications_without_end,
    connections_from_one_address_and_from_a_thousand,
)


@pytest.mark.parametrize("attack", ATTACKS, ids=[one.__name__ for one in ATTACKS])
def test_a_listener_is_after_an_attack_as_it_was_before(
    siege: Siege, attack: Callable[[Siege], None]
) -> None:
    attack(siege)
    siege.check()
