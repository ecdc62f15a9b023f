"""Clients that do everything at once for `bench.steady`, at rates that leave two cores time to idle.

Each is a thread with clients of librdkafka. An error that a client tells ends the bench: nothing fails here.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

import confluent_kafka

from tests.support.clients import Admin
from tests.support.wire import RawConnection

EVENTS, TABLE, MOVED = "events", "table", "moved"
PARTITIONS: Final = 6
VALUE_BYTES: Final = 1_000
KEYS: Final = 1_000
_TIERED: Final = {
    "remote_storage_enable": "true",
    "segment_bytes": str(4 << 20),
    "local_retention_bytes": str(8 << 20),
    "retention_bytes": str(64 << 20),
}
_BRIEF: Final = {"segment_ms": "60000", "retention_ms": "120000"}
"""Settings with which a topic has as many segments after some minutes as it ever has."""


class _Load:
    """Threads that go on until they are stopped, and the first error of any."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.over = threading.Event()
        self.error: BaseException | None = None
        self._threads: list[threading.Thread] = []

    def begin(self, work: Callable[[_Load], None]) -> None:
        thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def end(self) -> None:
        self.over.set()
        for one in self._threads:
            one.join(60)
        if self.error is not None:
            raise self.error

    def paced(self, seconds: float) -> Iterator[int]:
        """Count, a number each so many seconds, until the load ends."""
        for number in count():
            if self.over.wait(seconds):
                return
            yield number

    def _run(self, work: Callable[[_Load], None]) -> None:
        try:
            work(self)
        except BaseException as e:
            self.error = self.error or e
            self.over.set()


@contextmanager
def steady_load(bootstrap: str) -> Iterator[None]:
    """Have it run. Raises what any of its clients was told."""
    admin = Admin(bootstrap)
    admin.replicate(EVENTS, PARTITIONS, 3, **_TIERED)
    admin.replicate(TABLE, PARTITIONS, 3, cleanup_policy="compact", segment_bytes=str(1 << 20))
    admin.replicate(MOVED, PARTITIONS, 3, **_BRIEF)
    load = _Load(bootstrap)
    for work in (_produce, _upsert, _move, _follow, _come_and_go, _read_old, _make_topics, _connect):
        load.begin(work)
    try:
        yield
    finally:
        load.end()


def _check(error: Any, _: Any = None) -> None:
    if error is not None:
        raise confluent_kafka.KafkaException(error)


def _produce(load: _Load) -> None:
    """A megabyte a second, half of it compressed."""
    producers = [
        confluent_kafka.Producer(
            {"bootstrap.servers": load.bootstrap, "linger.ms": 20, "compression.type": kind}
        )
        for kind in ("none", "zstd")
    ]
    value = random.Random(1).randbytes(VALUE_BYTES)
    for number in load.paced(0.02):
        for _ in range(20):
            producers[number % 2].produce(EVENTS, value, on_delivery=_check)
        producers[number % 2].poll(0)
    for one in producers:
        one.flush(30)


def _upsert(load: _Load) -> None:
    """Five hundred records a second over some keys, which compaction cleans."""
    producer = confluent_kafka.Producer({"bootstrap.servers": load.bootstrap, "linger.ms": 20})
    rng = random.Random(2)
    for _ in load.paced(0.02):
        for _ in range(10):
            producer.produce(TABLE, bytes(200), str(rng.randrange(KEYS)), on_delivery=_check)
        producer.poll(0)
    producer.flush(30)


def _move(load: _Load) -> None:
    """Ten transactions a second, of which each tenth is aborted."""
    producer = confluent_kafka.Producer({"bootstrap.servers": load.bootstrap, "transactional.id": "mover"})
    producer.init_transactions(60)
    for number in load.paced(0.1):
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(MOVED, bytes(VALUE_BYTES), partition=partition, on_delivery=_check)
        if number % 10 == 9:
            producer.flush(30)
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


def _consumer(load: _Load, group: str, **settings: Any) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {"bootstrap.servers": load.bootstrap, "group.id": group, "auto.offset.reset": "latest", **settings}
    )


def _follow(load: _Load) -> None:
    """A member that stays, and commits."""
    consumer = _consumer(load, "followers")
    consumer.subscribe([EVENTS, TABLE, MOVED])
    while not load.over.is_set():
        for message in consumer.consume(1_000, 0.5):
            assert message.error() is None, message.error()
    consumer.close()


def _come_and_go(load: _Load) -> None:
    """Members of the same group that stay for twenty seconds each."""
    for _ in load.paced(5):
        consumer = _consumer(load, "followers")
        consumer.subscribe([EVENTS, TABLE, MOVED])
        until = time.monotonic() + 20
        while time.monotonic() < until and not load.over.is_set():
            for message in consumer.consume(1_000, 0.5):
                assert message.error() is None, message.error()
        consumer.close()


def _read_old(load: _Load) -> None:
    """Some of the oldest records, which are in the bucket alone, each ten seconds."""
    for number in load.paced(10):
        consumer = _consumer(load, "archaeologist", **{"auto.offset.reset": "earliest"})
        place = confluent_kafka.TopicPartition(EVENTS, number % PARTITIONS, confluent_kafka.OFFSET_BEGINNING)
        consumer.assign([place])
        for message in consumer.consume(5_000, 5):
            assert message.error() is None, message.error()
        consumer.close()


def _make_topics(load: _Load) -> None:
    """A topic that is made, written and deleted, each ten seconds."""
    admin = Admin(load.bootstrap)
    for number in load.paced(10):
        topic = f"short-lived-{number}"
        admin.replicate(topic, 2, 3)
        # A producer that outlived its topic would ask for its metadata again, and so make it once more.
        producer = confluent_kafka.Producer({"bootstrap.servers": load.bootstrap})
        producer.produce(topic, b"once", on_delivery=_check)
        producer.flush(30)
        admin.delete(topic)


def _connect(load: _Load) -> None:
    """Ten connections a second that come, ask nothing and go."""
    for _ in load.paced(0.1):
        with RawConnection(load.bootstrap):
            pass
