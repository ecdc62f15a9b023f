"""A thousand connections that move hardly a byte, and one client that works on: its progress is counted."""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.batches import batch
from tests.support.clients import Admin
from tests.support.processes import Node, wait_until
from tests.support.wire import (
    RawConnection,
    connect_all,
    encode_request,
    end_offset,
    produce,
    produce_request,
    schema,
)

CONNECTIONS = 1000
ROUNDS = 200
RECORD = b"x" * 150_000
SETTINGS = {
    # Little memory and little patience, so that they matter within a test.
    "queued.max.request.bytes": str(16 << 20),
    "socket.request.max.bytes": str(4 << 20),
    "firn.request.read.timeout.ms": "4000",
    "firn.send.timeout.ms": "4000",
}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path, SETTINGS).start()
    yield node
    node.stop()


def connected(node: Node, count: int, receive_bytes: int | None = None) -> list[socket.socket]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return connect_all(node.bootstrap, count, receive_bytes)


class Slow:
    """Connections that are nasty, all of one kind."""

    def __init__(self, node: Node, sockets: list[socket.socket]) -> None:
        self.node = node
        self.sockets = sockets
        self.closed: set[int] = set()
        """those that the node has ended, by number"""

    def look(self) -> None:
        """Find out which the node has ended; what it has sent is taken where the kind does that."""
        for number, one in enumerate(self.sockets):
            if number not in self.closed:
                self._see(number, one)

    def _see(self, number: int, one: socket.socket) -> None:
        try:
            if one.recv(1, socket.MSG_PEEK) == b"":
                self.closed.add(number)
        except BlockingIOError:
            pass
        except OSError:
            self.closed.add(number)

    def drip(self) -> None:
        """A byte on each."""
        for number, one in enumerate(self.sockets):
            if number in self.closed:
                continue
            try:
                one.send(b"\0")
            except BlockingIOError:
                pass
            except OSError:
                self.closed.add(number)

    def close(self) -> None:
        for one in self.sockets:
            one.close()


def a_byte_a_second(node: Node) -> Slow:
    """The size of a large request, then byte by byte."""
    slow = Slow(node, connected(node, CONNECTIONS))
    for one in slow.sockets:
        one.send(struct.pack(">i", 1 << 20))
    return slow


def in_mid_frame(node: Node) -> Slow:
    """Nine tenths of what fills a large buffer, of a request that never ends."""
    slow = Slow(node, connected(node, CONNECTIONS))
    piece = bytes(60_000)
    for one in slow.sockets:
        one.send(struct.pack(">i", 1 << 20))
        with contextlib.suppress(BlockingIOError):
            one.send(piece)
    return slow


def never_reading(node: Node) -> Slow:
    """A fetch of more than the kernel takes, again and again, and no look at any answer."""
    module = schema(1, 11)
    part = module.FetchPartition(
        partition=0, fetch_offset=0, partition_max_bytes=8 << 20, current_leader_epoch=-1, log_start_offset=-1
    )
    request = module.FetchRequest(
        replica_id=-1, max_wait=_ms(0), min_bytes=1, max_bytes=8 << 20, isolation_level=0, session_id=0,
        session_epoch=-1, forgotten_topics_data=(), rack_id="",
        topics=(module.FetchTopic(topic="large", partitions=(part,)),),
    )  # fmt: skip
    body = encode_request(request)
    with RawConnection(node.bootstrap) as connection:
        for _ in range(60):
            assert produce(connection, "large", 0, batch([RECORD])).error_code == 0
    slow = Slow(node, connected(node, CONNECTIONS, receive_bytes=4096))
    for one in slow.sockets:
        one.send(struct.pack(">i", len(body)) + body)
    return slow


def _ms(value: int) -> object:
    from datetime import timedelta

    return timedelta(milliseconds=value)


class Innocent:
    """Produces large records and reads each one back, over one connection that is never lost."""

    def __init__(self, node: Node) -> None:
        self.connection = RawConnection(node.bootstrap, 60)
        self.rounds = 0

    def round(self) -> None:
        answer = self.connection.call(produce_request("work", 0, batch([RECORD])))
        (produced,) = answer.responses[0].partition_responses
        assert produced.error_code == 0
        assert produced.base_offset == self.rounds
        module = schema(1, 11)
        part = module.FetchPartition(
            partition=0, fetch_offset=self.rounds, partition_max_bytes=1 << 20, current_leader_epoch=-1,
            log_start_offset=-1,
        )  # fmt: skip
        found = self.connection.call(
            module.FetchRequest(
                replica_id=-1,
                max_wait=_ms(500),
                min_bytes=1,
                max_bytes=8 << 20,
                isolation_level=0,
                session_id=0,
                session_epoch=-1,
                forgotten_topics_data=(),
                rack_id="",
                topics=(module.FetchTopic(topic="work", partitions=(part,)),),
            )
        )  # fmt: skip
        records = found.responses[0].partitions[0].records
        assert records is not None
        assert RECORD in bytes(records)
        self.rounds += 1


@pytest.mark.parametrize("begin", [a_byte_a_second, in_mid_frame, never_reading])
def test_an_innocent_client_goes_on_beside_a_thousand_slow_ones(
    node: Node, begin: Callable[[Node], Slow]
) -> None:
    admin = Admin(node.bootstrap)
    admin.create("work", 1)
    admin.create("large", 1)
    innocent = Innocent(node)
    innocent.round()
    slow = begin(node)
    stopped = threading.Event()

    def go_on_dripping() -> None:
        while not stopped.wait(1):
            slow.drip()

    dripping = threading.Thread(target=go_on_dripping, daemon=True)
    if begin is a_byte_a_second:
        dripping.start()
    try:
        for _ in range(ROUNDS):
            innocent.round()

        def all_ended() -> bool:
            innocent.round()
            slow.look()
            return len(slow.closed) == CONNECTIONS

        if begin is not never_reading:
            wait_until("the node to have ended all of them", all_ended, 60)
        else:
            # Their answers lie in the way: nobody sees the end of a connection that he does not read.
            wait_until("the node to have ended all of them", lambda: open_at(node) <= 10, 60)
            innocent.round()
    finally:
        stopped.set()
        slow.close()
    assert end_offset(node.bootstrap, "work", 0) == innocent.rounds


def open_at(node: Node) -> int:
    """Sockets that the node has open."""
    found = 0
    for fd in Path(f"/proc/{node.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found += str(fd.readlink()).startswith("socket:")
    return found
