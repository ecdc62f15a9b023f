"""Produce requests with acks to the leaders of a topic: as fast as they are answered, or at a steady pace."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Self

from bench.load import framed
from tests.support.batches import batch
from tests.support.wire import leader_of, produce_request

RECORD_BYTES = 1000


class Felt(NamedTuple):
    """Times from when a request was due until it was answered, in seconds."""

    requests: int
    p50: float
    p99: float
    worst: float


class _Lane:
    """One connection to the leader of one partition: answers come in the order of the requests."""

    def __init__(self, bootstrap: str, topic: str, partition: int, records: int, acks: int) -> None:
        place = leader_of(bootstrap, topic, partition)
        host, _, port = place.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), 30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        data = batch([bytes([number % 251]) * RECORD_BYTES for number in range(records)])
        self.bytes = len(data)
        self._frame = memoryview(framed(produce_request(topic, partition, data, acks)))
        self._where = f"{topic}-{partition} at {place}"
        # correlation id, no tags, one topic, its name, one partition, its index
        self._error_at = 4 + 1 + 1 + 1 + len(topic) + 1 + 4
        self._unsent: deque[memoryview] = deque()
        self._received = bytearray()
        self.due: deque[float] = deque()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def ask(self, due: float) -> None:
        self.due.append(due)
        self._unsent.append(self._frame)
        self.push()

    def push(self) -> None:
        try:
            while self._unsent:
                sent = self.socket.send(self._unsent[0])
                if sent == len(self._unsent[0]):
                    self._unsent.popleft()
                else:
                    self._unsent[0] = self._unsent[0][sent:]
        except BlockingIOError:
            return

    def answered(self) -> Iterator[float]:
        """When each request was due that is answered by now."""
        piece = self.socket.recv(64 << 10)
        if not piece:
            raise ConnectionError(f"{self._where}: the node closed the connection")
        self._received += piece
        while len(self._received) >= 4:
            (size,) = struct.unpack_from(">i", self._received)
            if len(self._received) < 4 + size:
                return
            (error,) = struct.unpack_from(">h", self._received, 4 + self._error_at)
            if error:
                raise AssertionError(f"{self._where}: error {error}")
            del self._received[: 4 + size]
            yield self.due.popleft()


class _Lanes:
    """A lane for each partition. For a `with`."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: Sequence[int], records: int, acks: int
    ) -> None:
        made = [_Lane(bootstrap, topic, one, records, acks) for one in partitions]
        self.all: Mapping[socket.socket, _Lane] = {lane.socket: lane for lane in made}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for sock in self.all:
            sock.close()

    def wait(self, seconds: float) -> Iterator[tuple[_Lane, float]]:
        """Sends and receives once: the lanes that were answered, and when that request was due."""
        writing = [sock for sock, lane in self.all.items() if lane.has_unsent]
        ready, writable, _ = select.select(list(self.all), writing, [], max(seconds, 0))
        for sock in writable:
            self.all[sock].push()
        for sock in ready:
            lane = self.all[sock]
            for due in lane.answered():
                yield lane, due


def pour(
    bootstrap: str, topic: str, partitions: Sequence[int], size: int, records: int, acks: int, window: int = 5
) -> tuple[int, float]:
    """At least `size` bytes of batches, `window` requests of each partition under way: (bytes, seconds)."""
    with _Lanes(bootstrap, topic, partitions, records, acks) as lanes:
        each = next(iter(lanes.all.values())).bytes
        left = wanted = -(-size // each)
        began = time.monotonic()
        for _ in range(window):
            for lane in lanes.all.values():
                lane.ask(began)
                left -= 1
        while any(lane.due for lane in lanes.all.values()):
            for lane, _ in lanes.wait(60):
                if left > 0:
                    lane.ask(0)
                    left -= 1
        return max(wanted, window * len(lanes.all)) * each, time.monotonic() - began


class Pace:
    """Requests of one record each at a steady pace, in a thread, by turns to each partition. For a `with`.

    An open loop: requests are sent when they are due, and times count from then, so that waiting counts.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: Sequence[int], rate: int, acks: int) -> None:
        self._lanes = _Lanes(bootstrap, topic, partitions, 1, acks)
        self._every_s = 1 / rate
        self._over = threading.Event()
        self._found: list[tuple[float, float]] = []
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._lanes.__exit__()

    def _run(self) -> None:
        try:
            self._go_on()
        except (OSError, AssertionError) as e:
            self._failed.append(e)

    def _go_on(self) -> None:
        lanes = list(self._lanes.all.values())
        due, number = time.monotonic(), 0
        while not self._over.is_set():
            while (now := time.monotonic()) >= due:
                lanes[number % len(lanes)].ask(due)
                number += 1
                due += self._every_s
            for _, asked in self._lanes.wait(due - now):
                self._found.append((asked, time.monotonic() - asked))

    def felt(self, seconds: float) -> Felt:
        """Of what is due in the next `seconds`."""
        began = time.monotonic()
        time.sleep(seconds)
        return self.felt_since(began)

    def felt_since(self, began: float) -> Felt:
        if self._failed:
            raise self._failed[0]
        found = sorted(took for due, took in list(self._found) if due >= began)
        count = len(found)
        return Felt(count, found[count // 2], found[count * 99 // 100], found[-1])
