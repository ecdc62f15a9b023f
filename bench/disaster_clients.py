"""Clients of `bench.disasters`, which know what was acknowledged to them, and when.

All go on over a disaster with the same client objects, and so with what they knew of the lost cluster.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable
from typing import Final, NamedTuple

import confluent_kafka

CHAINS, ECHOES, BULK = "chains", "echoes", "bulk"
CHAIN_PARTITIONS: Final = 16
_PATIENCE_S: Final = 30.0


class Acknowledged(NamedTuple):
    """A record that its producer was told is written; `at` is a time of this machine's monotonic clock."""

    offset: int
    at: float


class Paused:
    """Flag that stops clients between two records, and waits until all have stopped."""

    def __init__(self) -> None:
        self._may_run = threading.Event()
        self._may_run.set()
        self.over = threading.Event()
        self._busy = 0
        self._lock = threading.Condition()

    def __enter__(self) -> bool:
        """Wait until the client may go on; return False once all is over."""
        while not self._may_run.wait(0.1):
            if self.over.is_set():
                return False
        with self._lock:
            self._busy += 1
        return not self.over.is_set()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._busy -= 1
            self._lock.notify_all()

    def pause(self) -> None:
        """Have clients stop behind what they have under way."""
        self._may_run.clear()

    def wait(self) -> None:
        """Wait until all clients have stopped."""
        with self._lock:
            if not self._lock.wait_for(lambda: self._busy == 0, 4 * _PATIENCE_S):
                raise SystemExit("a client does not come to an end with what it has under way")

    def resume(self) -> None:
        self._may_run.set()


class Bulk(threading.Thread):
    """Producer of `rate` bytes a second over all partitions of one topic, with acks=all."""

    def __init__(self, bootstrap: str, partitions: int, rate: float, size: int, paused: Paused) -> None:
        super().__init__(daemon=True)
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 20, "message.timeout.ms": 600_000}
        )
        self._partitions, self._size, self._paused = partitions, size, paused
        self._pause_s = size / rate
        self.acknowledged: list[list[Acknowledged]] = [[] for _ in range(partitions)]

    def run(self) -> None:
        value, number, due = bytes(self._size), 0, time.monotonic()
        while not self._paused.over.is_set():
            with self._paused as may_run:
                if not may_run:
                    return
                try:
                    self._producer.produce(
                        BULK, value, partition=number % self._partitions, on_delivery=self._delivered
                    )
                    number += 1
                except BufferError:
                    self._producer.poll(0.1)
                self._producer.poll(0)
            due = max(due + self._pause_s, time.monotonic() - 1)
            time.sleep(max(due - time.monotonic(), 0))

    def _delivered(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is None:
            found = Acknowledged(message.offset(), time.monotonic())
            self.acknowledged[message.partition()].append(found)

    def lost(self, partition: int, end: int, before: float) -> list[Acknowledged]:
        """Return what was acknowledged before that time at or behind `end`, and forget it."""
        known = self.acknowledged[partition]
        lost = [one for one in known if one.offset >= end and one.at < before]
        self.acknowledged[partition] = [one for one in known if one.at >= before]
        return lost


class Chain(threading.Thread):
    """Producer that writes its next record only after the answer to the one before, to random partitions."""

    def __init__(self, bootstrap: str, number: int, seed: int, paused: Paused) -> None:
        super().__init__(daemon=True)
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "message.timeout.ms": 5_000}
        )
        self.number, self._random, self._paused = number, random.Random(seed * 1000 + number), paused
        self.acknowledged: list[float] = []
        """when each record was"""

    def run(self) -> None:
        while not self._paused.over.is_set():
            with self._paused as may_run:
                if not may_run:
                    return
                value = b"%d:%d" % (self.number, len(self.acknowledged))
                partition = self._random.randrange(CHAIN_PARTITIONS)
                if is_written(self._producer, CHAINS, value, partition):
                    self.acknowledged.append(time.monotonic())
            time.sleep(0.01)


class Echo(threading.Thread):
    """Member of a group that answers each record of a chain by one of its own, and then commits."""

    def __init__(self, bootstrap: str, group: str, paused: Paused) -> None:
        super().__init__(daemon=True)
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "message.timeout.ms": 5_000}
        )
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 10_000,
            }
        )
        self.group, self._paused = group, paused
        self.commits: list[float] = []
        self.rejoins = True

    def run(self) -> None:
        while not self._paused.over.is_set():
            with self._paused as may_run:
                if not may_run:
                    break
                if self.rejoins:
                    # Its position is that of the lost cluster; what it answered there may be lost.
                    self.rejoins = False
                    self._consumer.unsubscribe()
                    self._consumer.subscribe([CHAINS])
                message = self._consumer.poll(0.2)
                if message is None or message.error() is not None:
                    continue
                value = message.value()
                assert value is not None
                place = b"%d@%d=" % (message.partition(), message.offset())
                if not is_written(self._producer, ECHOES, place + value, message.partition()):
                    self._consumer.seek(
                        confluent_kafka.TopicPartition(CHAINS, message.partition(), message.offset())
                    )
                    continue
                try:
                    self._consumer.commit(message, asynchronous=False)
                    self.commits.append(time.monotonic())
                except confluent_kafka.KafkaException:
                    continue  # the next commit covers it; a member of a group that is gone joins again
        self._consumer.close()


def is_written(producer: confluent_kafka.Producer, topic: str, value: bytes, partition: int) -> bool:
    """Write one record and wait for its answer; return whether it was acknowledged."""
    answers: list[bool] = []
    producer.produce(
        topic, value, partition=partition, on_delivery=lambda error, _: answers.append(error is None)
    )
    until = time.monotonic() + _PATIENCE_S
    while not answers and time.monotonic() < until:
        producer.poll(0.2)
    return bool(answers and answers[0])


class Content(NamedTuple):
    """Records of a topic as they are found: by partition, offset and value."""

    records: list[list[tuple[int, bytes]]]

    def values(self) -> Iterable[bytes]:
        return (value for part in self.records for _, value in part)


def content(bootstrap: str, topic: str, partitions: int) -> Content:
    """Read all of a topic, up to the ends at the start of the call."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    found: list[list[tuple[int, bytes]]] = [[] for _ in range(partitions)]
    try:
        begin = confluent_kafka.OFFSET_BEGINNING
        consumer.assign([confluent_kafka.TopicPartition(topic, one, begin) for one in range(partitions)])
        ended: set[int] = set()
        until = time.monotonic() + 300
        while len(ended) < partitions:
            assert time.monotonic() < until, f"{topic} is not read to its end"
            for message in consumer.consume(1000, 0.5):
                error = message.error()
                if error is None:
                    found[message.partition()].append((message.offset(), message.value() or b""))
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                elif not error.retriable():
                    raise confluent_kafka.KafkaException(error)
    finally:
        consumer.close()
    return Content(found)


def torn(chains: Content, echoes: Content, clients: int, committed: Iterable[tuple[int, int]]) -> list[str]:
    """Return where what was found is not of one moment: a chain with a hole, an echo without its cause, a
    committed offset whose records have no echo or do not exist."""
    found: list[str] = []
    numbers: list[set[int]] = [set() for _ in range(clients)]
    for value in chains.values():
        client, _, count = value.partition(b":")
        numbers[int(client)].add(int(count))
    for chain, known in enumerate(numbers):
        if known and len(known) != max(known) + 1:
            missing = min(set(range(max(known))) - known)
            found.append(f"chain {chain} has {max(known)} and lacks {missing}")
    causes = {(part, at): value for part, records in enumerate(chains.records) for at, value in records}
    answered: list[set[int]] = [set() for _ in chains.records]
    for echo in echoes.values():
        place, _, cause = echo.partition(b"=")
        number, offset = _place(place)
        if causes.get((number, offset)) != cause:
            found.append(f"echo of {place.decode()} is there, and its cause is not")
        else:
            answered[number].add(offset)
    for partition, end in committed:
        if end <= 0:
            continue
        lacking = [at for at, _ in chains.records[partition] if at < end and at not in answered[partition]]
        if lacking:
            found.append(f"{CHAINS}-{partition} is committed to {end}, and {lacking[0]} has no echo")
        last = chains.records[partition][-1][0] if chains.records[partition] else -1
        if end > last + 1:
            found.append(f"{CHAINS}-{partition} is committed to {end}, and its last record is {last}")
    return found


def _place(words: bytes) -> tuple[int, int]:
    partition, _, offset = words.partition(b"@")
    return int(partition), int(offset)
