"""Produce requests with acks to the leaders of a topic: as fast as they are answered, or at a steady pace."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil, inf
from typing import NamedTuple, Self

from bench.innocent import Lane, produce_error_at
from bench.load import framed
from tests.support.batches import batch
from tests.support.wire import leader_of, produce_request

RECORD_BYTES = 1000
_NOT_LEADER = 6
_PATIENCE_S = 60.0
_LOOK_S = 0.01


class LeaderMoved(Exception):
    """A partition got another leader meanwhile. The connections here do not follow it."""


class Felt(NamedTuple):
    """Times from when a request was due until it was answered, in seconds."""

    requests: int
    p50: float
    p99: float
    p999: float
    worst: float


def felt_of(times: Iterable[float]) -> Felt:
    """Return what so many times amount to; there is one at least."""
    found = sorted(times)
    count = len(found)
    return Felt(count, found[count // 2], found[count * 99 // 100], found[count * 999 // 1000], found[-1])


class _Lane(Lane):
    """The connection to the leader of one partition, and the one request that it is sent again and again."""

    def __init__(self, bootstrap: str, topic: str, partition: int, records: int, acks: int) -> None:
        place = leader_of(bootstrap, topic, partition)
        super().__init__(place)
        data = batch([bytes([number % 251]) * RECORD_BYTES for number in range(records)])
        self.bytes = len(data)
        self._frame = framed(produce_request(topic, partition, data, acks))
        self._where = f"{topic}-{partition} at {place}"
        self._error_at = produce_error_at(topic)

    def produce(self, due: float) -> None:
        self.ask(self._frame, due)

    def answered(self) -> Iterator[float]:
        """Yield the due time of each request that is answered by now."""
        for due, frame in self.answers():
            (error,) = struct.unpack_from(">h", frame, self._error_at)
            if error == _NOT_LEADER:
                raise LeaderMoved(self._where)
            if error:
                raise AssertionError(f"{self._where}: error {error}")
            yield due


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
        writing = [sock for sock, lane in self.all.items() if lane.unsent]
        ready, writable, _ = select.select(list(self.all), writing, [], max(seconds, 0))
        for sock in writable:
            self.all[sock].push()
        for sock in ready:
            lane = self.all[sock]
            for due in lane.answered():
                yield lane, due


def pour(
    bootstrap: str,
    topic: str,
    partitions: Sequence[int],
    size: float,
    records: int,
    acks: int,
    window: int = 5,
    *,
    seconds: float = inf,
    rate: float = inf,
) -> tuple[int, float]:
    """Produce at least `size` bytes, or for so many seconds, with `window` pending requests a partition and
    at most `rate` bytes a second; return (bytes, seconds)."""
    with _Lanes(bootstrap, topic, partitions, records, acks) as lanes:
        each = next(iter(lanes.all.values())).bytes
        wanted = ceil(size / each) if size < inf else inf
        free = deque(lane for _ in range(window) for lane in lanes.all.values())
        sent, began = 0, time.monotonic()
        while True:
            took = time.monotonic() - began
            most = wanted if rate == inf else min(wanted, 1 + rate * took // each)
            is_over = sent >= wanted or took >= seconds
            while free and sent < most and not is_over:
                free.popleft().produce(began)
                sent += 1
            if is_over and not any(lane.due for lane in lanes.all.values()):
                return sent * each, time.monotonic() - began
            pause = 60 if is_over or not free else each / rate
            free.extend(lane for lane, _ in lanes.wait(pause))


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
        self._answered_before = 0.0
        """all requests are answered that were due before"""
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
        except (OSError, AssertionError, LeaderMoved) as e:
            self._failed.append(e)

    def _go_on(self) -> None:
        lanes = list(self._lanes.all.values())
        due, number = time.monotonic(), 0
        while not self._over.is_set():
            while (now := time.monotonic()) >= due:
                lanes[number % len(lanes)].produce(due)
                number += 1
                due += self._every_s
            for _, asked in self._lanes.wait(due - now):
                self._found.append((asked, time.monotonic() - asked))
            self._answered_before = min([due, *(lane.due[0] for lane in lanes if lane.due)])

    def felt(self, seconds: float) -> Felt:
        """Return the latencies of the requests that are due in the next `seconds`."""
        began = time.monotonic()
        time.sleep(seconds)
        return self.felt_since(began)

    def felt_since(self, began: float) -> Felt:
        """Return the latencies of the requests that were due from `began` until now, once all of them are
        answered: those that wait longest count, too."""
        ended = time.monotonic()
        while self._answered_before <= ended and not self._failed:
            if time.monotonic() > ended + _PATIENCE_S:
                raise AssertionError(f"a request is not answered within {_PATIENCE_S:.0f} s")
            time.sleep(_LOOK_S)
        if self._failed:
            raise self._failed[0]
        return felt_of(took for due, took in list(self._found) if began <= due <= ended)
