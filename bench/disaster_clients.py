"""Clients of `bench.disasters`, which know what was acknowledged to them, and when.

All go on over a disaster with the same client objects, and so with what they knew of the lost cluster.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import confluent_kafka

CHAINS, ECHOES, BULK = "chains", "echoes", "bulk"
OFFSETS: Final = "__consumer_offsets"
CHAIN_PARTITIONS: Final = 16
ANSWERED: Final = 2
"""Chains whose records are answered, the first ones: a group that lags behind would show nothing."""
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

    def behind(self, ends: Sequence[int], before: float) -> list[Acknowledged]:
        """Return what was acknowledged before that time at or behind its partition's end."""
        pairs = zip(self.acknowledged, ends, strict=True)
        return [one for known, end in pairs for one in known if one.offset >= end and one.at < before]

    def forget(self, before: float) -> None:
        """Forget what was acknowledged before that time."""
        self.acknowledged = [[one for one in known if one.at >= before] for known in self.acknowledged]


class Chain(threading.Thread):
    """Producer that writes its next record only after the answer to the one before, to random partitions."""

    def __init__(self, bootstrap: str, number: int, seed: int, pause_s: float, paused: Paused) -> None:
        super().__init__(daemon=True)
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "message.timeout.ms": 5_000}
        )
        self.number, self._random, self._paused = number, random.Random(seed * 1000 + number), paused
        self._pause_s = pause_s
        self.acknowledged: list[float] = []
        """when each record was"""
        self.left = 0
        """how many of them were there after a disaster"""

    def give_up(self) -> list[float]:
        """Go on behind what is left; return when what is lost was acknowledged."""
        lost = self.acknowledged[self.left :]
        del self.acknowledged[self.left :]
        return lost

    def run(self) -> None:
        while not self._paused.over.is_set():
            with self._paused as may_run:
                if not may_run:
                    return
                value = b"%d:%d" % (self.number, len(self.acknowledged))
                partition = self._random.randrange(CHAIN_PARTITIONS)
                if is_written(self._producer, CHAINS, value, partition):
                    self.acknowledged.append(time.monotonic())
            time.sleep(self._pause_s)


class Echo(threading.Thread):
    """Member of a group that answers each record of some chains by one of its own, and then commits."""

    def __init__(self, bootstrap: str, group: str, paused: Paused) -> None:
        super().__init__(daemon=True)
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "message.timeout.ms": 5_000}
        )
        self._address, self.group, self._paused = bootstrap, group, paused
        self._consumer = self._joined()
        self._before: list[confluent_kafka.Consumer] = []
        self.rejoins = False

    def _joined(self) -> confluent_kafka.Consumer:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._address,
                "group.id": self.group,
                "group.instance.id": "echo",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 10_000,
            }
        )
        consumer.subscribe([CHAINS])
        return consumer

    def run(self) -> None:
        while not self._paused.over.is_set():
            with self._paused as may_run:
                if not may_run:
                    break
                if self.rejoins:
                    # Its position is that of the lost cluster; what it answered there may be lost. The new
                    # consumer takes its place by the instance's id. It is not closed, as close, unsubscribe
                    # and seek may wait for a coordinator that is gone, and keep all of Python waiting.
                    self.rejoins = False
                    self._before.append(self._consumer)
                    self._consumer = self._joined()
                message = self._consumer.poll(0.2)
                if message is None or message.error() is not None:
                    continue
                value = message.value()
                assert value is not None
                if not is_answered(value):
                    continue
                place = b"%d@%d=" % (message.partition(), message.offset())
                if not is_written(self._producer, ECHOES, place + value, message.partition()):
                    self._consumer.seek(
                        confluent_kafka.TopicPartition(CHAINS, message.partition(), message.offset())
                    )
                    continue
                # Without its answer, for which a client whose coordinator is gone may wait without end. The
                # next commit covers one that fails.
                self._consumer.commit(message, asynchronous=True)


def is_answered(value: bytes) -> bool:
    """Return whether a chain's record has to have an echo."""
    return int(value.partition(b":")[0]) < ANSWERED


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
