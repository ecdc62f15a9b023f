"""Cost of many partitions and of many idle connections for a node: `python -m bench.sessions [PART …]`.

- idle: 5,000 connections that each wait in a long poll for records that do not come.
- session: a consumer of 5,000 partitions in one fetch session, with 20 records a second spread over them.
- full: one of 3,000 partitions without a session: its fetches name them all, and begin with another one each
  time, as librdkafka's do.

It uses raw sockets and hand-made frames (Fetch 11), so that mainly the node is measured. It prints CPU in per
cent of a core, and resident memory in MB.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import resource
import selectors
import socket
import struct
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path

from bench.figures import FIRN, KAFKA, Figures, add_json_option, write_asked
from bench.measures import Measured
from bench.parts import parts_of
from bench.peers import Cpu, Peer, check_kafka, firn, kafka, rss_mb
from tests.support.batches import batch
from tests.support.clients import Admin
from tests.support.processes import wait_until
from tests.support.tiers import LATEST
from tests.support.wire import RawConnection, encode_request, offsets, produce_request

FETCH, VERSION = 1, 11
_HEADER = struct.Struct(">hhih")
_LIMITS = struct.Struct(">iiiibii")
"""replica, wait, least and most bytes, isolation, session, epoch"""
_ASKED = struct.Struct(">iiqqi")
_ANSWER = struct.Struct(">ihi")
"""throttle time, error, session"""
_FOUND = struct.Struct(">ihqqqiii")
"""partition, error, three offsets, aborted transactions (none), preferred replica, bytes of records"""
_BATCH = struct.Struct(">qi")
_LAST = struct.Struct(">i")
PARTITIONS_OF_A_TOPIC = 500
PARTS = ("idle", "session", "full")
PATIENCE_S = 300.0

Asked = Mapping[tuple[str, int], int]
"""(topic, partition) -> offset"""


def fetch_frame(asked: Asked, wait_ms: int, session: int = 0, epoch: int = -1) -> bytes:
    """Fetch of `asked`, in its order, whole with its size."""
    by_topic: list[tuple[str, bytearray]] = []
    for (topic, partition), offset in asked.items():
        if not by_topic or by_topic[-1][0] != topic:
            by_topic.append((topic, bytearray()))
        by_topic[-1][1].extend(_ASKED.pack(partition, -1, offset, -1, 1 << 20))
    out = bytearray(_HEADER.pack(FETCH, VERSION, 1, -1))
    out += _LIMITS.pack(-1, wait_ms, 1, 50 << 20, 0, session, epoch)
    out += struct.pack(">i", len(by_topic))
    for topic, partitions in by_topic:
        name = topic.encode()
        out += struct.pack(">h", len(name)) + name
        out += struct.pack(">i", len(partitions) // _ASKED.size) + partitions
    out += struct.pack(">ih", 0, 0)  # nothing forgotten, no rack
    return struct.pack(">i", len(out)) + bytes(out)


def found_in(answer: bytes) -> tuple[int, int, dict[tuple[str, int], int]]:
    """(error, session, (topic, partition) -> offset behind its records) of a response without its size."""
    _, error, session = _ANSWER.unpack_from(answer, 4)
    position = 4 + _ANSWER.size
    (topics,) = struct.unpack_from(">i", answer, position)
    position += 4
    found = {}
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", answer, position)
        topic = answer[position + 2 : position + 2 + length].decode()
        position += 2 + length
        (count,) = struct.unpack_from(">i", answer, position)
        position += 4
        for _ in range(count):
            partition, code, _, _, _, _, _, size = _FOUND.unpack_from(answer, position)
            assert code == 0, f"{topic}-{partition}: error {code}"
            position += _FOUND.size
            end = position + size
            while position < end:
                base, length = _BATCH.unpack_from(answer, position)
                (last,) = _LAST.unpack_from(answer, position + 23)
                found[topic, partition] = base + last + 1
                position += _BATCH.size + length
    return error, session, found


class Consumer(threading.Thread):
    """Reads partitions in one session, as Java's consumer does, or with full fetches where it gets none or
    does not want one."""

    def __init__(
        self, bootstrap: str, partitions: Iterable[tuple[str, int]], wait_ms: int, *, wants_session: bool
    ) -> None:
        super().__init__(daemon=True)
        self._wants_session = wants_session
        self._connection = RawConnection(bootstrap, 60)
        self._wait_ms = wait_ms
        self._at = dict.fromkeys(partitions, 0)
        self.records = self.fetches = self.session = 0
        self.stops = False

    def run(self) -> None:
        first = 0 if self._wants_session else -1
        epoch, changed, order = first, dict(self._at), deque(self._at)
        while not self.stops:
            asked = changed if self.session else {place: self._at[place] for place in order}
            self._connection.send(fetch_frame(asked, self._wait_ms, self.session, epoch))
            error, session, found = found_in(self._connection.receive_frame())
            assert error == 0, f"error {error}"
            self.session = session
            epoch = epoch + 1 if session else first
            order.rotate(-1)
            self.records += sum(end - self._at[partition] for partition, end in found.items())
            self._at.update(found)
            changed = found
            self.fetches += 1


def _create(peer: Peer, topic: str, partitions: int) -> None:
    Admin(peer.bootstrap).create(topic, partitions)
    with RawConnection(peer.bootstrap, 60) as connection:
        wait_until(
            f"leaders of {topic}",
            lambda: all(offsets(connection, topic, one, LATEST).error_code == 0 for one in range(partitions)),
            120,
        )


def _settled(peer: Peer) -> float:
    """CPU in per cent of a core once what new files need in the background is done."""
    before = 100.0
    for _ in range(40):
        with Cpu(peer.pid) as cpu:
            time.sleep(3)
        now = cpu.all / cpu.wall * 100
        if now > before * 0.8:
            return now
        before = now
    return before


def many_partitions(
    peer: Peer, partitions: int, rate: int, seconds: float, wait_ms: int, *, wants_session: bool = True
) -> list[Measured]:
    """A consumer of `partitions` partitions with `rate` records a second."""
    places = []
    for first in range(0, partitions, PARTITIONS_OF_A_TOPIC):
        count = min(PARTITIONS_OF_A_TOPIC, partitions - first)
        _create(peer, f"many-{first}", count)
        places += [(f"many-{first}", partition) for partition in range(count)]
    with RawConnection(peer.bootstrap, 60) as producer:
        before = rss_mb(peer.pid)
        consumer = Consumer(peer.bootstrap, places, wait_ms, wants_session=wants_session)
        consumer.start()
        wait_until("the consumer to have asked for everything", lambda: consumer.fetches > 1, PATIENCE_S)
        rng = random.Random(1)
        record = batch([bytes(100)])

        def produce(place: tuple[str, int]) -> None:
            producer.send_frame(encode_request(produce_request(*place, record)))
            producer.receive_frame()

        for place in places:  # its files are made with its first record
            produce(place)
        wait_until(
            "every partition's record to have come", lambda: consumer.records == len(places), PATIENCE_S
        )
        alone = _settled(peer)
        sent, fetches = 0, consumer.fetches
        with Cpu(peer.pid) as cpu:
            started = time.monotonic()
            while (now := time.monotonic()) - started < seconds:
                while sent < (now - started) * rate:
                    produce(rng.choice(places))
                    sent += 1
                time.sleep(0.2 / rate)
        wait_until("every record to have come", lambda: consumer.records == len(places) + sent, PATIENCE_S)
        fetches = consumer.fetches - fetches
        consumer.stops = True
        consumer.join()
        how = "" if wants_session else " without a session"
        what = f"consumer{how} of {partitions} partitions, {rate} records/s"
        return [
            Measured(f"CPU, {what}", "%", 5, cpu.all / cpu.wall * 100),
            Measured(f"CPU without records, {what}", "%", None, alone),
            Measured(f"CPU per fetch, {what}", "µs", None, cpu.all / fetches * 1e6),
            Measured(f"memory, {what}", "MB more", None, rss_mb(peer.pid) - before),
        ]


def idle_polls(peer: Peer, connections: int, wait_ms: int, seconds: float) -> list[Measured]:
    """`connections` connections, each of which waits `wait_ms` at a time for records that do not come."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    host, _, port = peer.bootstrap.rpartition(":")
    _create(peer, "idle", 1)
    with contextlib.ExitStack() as stack:
        frame = fetch_frame({("idle", 0): 0}, wait_ms)
        before = rss_mb(peer.pid)
        sockets = []
        for _ in range(connections):
            sockets.append(stack.enter_context(socket.create_connection((host, int(port)), 60)))
            sockets[-1].sendall(frame)
        answered, stops = 0, False

        def ask_again() -> None:
            nonlocal answered
            with selectors.DefaultSelector() as selector:
                for one in sockets:
                    selector.register(one, selectors.EVENT_READ)
                while not stops:
                    for key, _ in selector.select(0.1):
                        idle = key.fileobj
                        assert isinstance(idle, socket.socket)
                        assert len(idle.recv(4096)) > 4, "the node closed a connection"
                        idle.sendall(frame)
                        answered += 1

        asking = threading.Thread(target=ask_again, daemon=True)
        asking.start()
        time.sleep(1)
        polls = answered
        with Cpu(peer.pid) as cpu:
            time.sleep(seconds)
        polls = answered - polls
        after = rss_mb(peer.pid)
        stops = True
        asking.join()
    what = f"{connections} idle connections, {wait_ms / 1000:g} s at a time"
    return [
        Measured(f"CPU, {what}", "%", 5, cpu.all / cpu.wall * 100),
        Measured(f"CPU per poll, {what}", "µs", None, cpu.all / max(polls, 1) * 1e6),
        Measured(f"memory, {what}", "MB more", 80, after - before),
    ]


def _node(folder: Path, is_kafka: bool, **settings: str) -> contextlib.AbstractContextManager[Peer]:
    return kafka(folder) if is_kafka else firn(folder, None, **settings)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.sessions", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--partitions", type=int, default=5000)
    parser.add_argument("--without-session", type=int, default=3000, help="partitions of the other consumer")
    parser.add_argument("--rate", type=int, default=20, help="records a second (default: 20)")
    parser.add_argument("--connections", type=int, default=5000)
    parser.add_argument(
        "--wait-ms", type=int, default=10_000, help="longest wait of the idle connections (default: 10,000)"
    )
    parser.add_argument("--seconds", type=float, default=20, help="time of each measure (default: 20)")
    parser.add_argument("--kafka", action="store_true", help="measure Apache Kafka instead")
    add_json_option(parser)
    arguments = parser.parse_args()
    check_kafka(parser, arguments)
    names = parts_of(parser, arguments.names, PARTS)
    figures, side = Figures(), KAFKA if arguments.kafka else FIRN
    with tempfile.TemporaryDirectory(prefix="firn-bench-") as name:
        if "idle" in names:
            with _node(Path(name) / "idle", arguments.kafka) as peer:
                found = idle_polls(peer, arguments.connections, arguments.wait_ms, arguments.seconds)
                figures.tell(side, found)
        for part, partitions in (("session", arguments.partitions), ("full", arguments.without_session)):
            if part not in names:
                continue
            # Descriptors that are not kept for connections carry partitions.
            with _node(Path(name) / part, arguments.kafka, **{"max.connections": "500"}) as peer:
                found = many_partitions(
                    peer, partitions, arguments.rate, arguments.seconds, 500, wants_session=part == "session"
                )
                figures.tell(side, found)
    write_asked(arguments, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
