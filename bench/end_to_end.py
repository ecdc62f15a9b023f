"""Records on their way from a producer to a consumer, both librdkafka's, at a steady pace.

An open loop: a record carries the time at which it was due, and its time counts from then until the consumer
has it, so that waiting counts on either side.
"""

from __future__ import annotations

import struct
import threading
import time
from typing import Self

import confluent_kafka

from bench.replica_load import RECORD_BYTES, Felt, felt_of

_DUE = struct.Struct(">d")
_PATIENCE_S = 30.0


class EndToEnd:
    """Producer with acks=all and consumer of one topic, each in a thread. For a `with`."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, rate: int) -> None:
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "message.timeout.ms": 60_000}
        )
        self._consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "end-to-end", "enable.auto.commit": False}
        )
        places = [confluent_kafka.TopicPartition(topic, number) for number in range(partitions)]
        for place in places:
            place.offset = self._consumer.get_watermark_offsets(place, timeout=30)[1]
        self._consumer.assign(places)
        self._topic, self._partitions, self._every_s = topic, partitions, 1 / rate
        self._over, self._read = threading.Event(), threading.Event()
        self._sent = 0
        self._found: list[tuple[float, float]] = []
        self._failed: list[BaseException] = []
        self._threads = [threading.Thread(target=self._send), threading.Thread(target=self._receive)]

    def __enter__(self) -> Self:
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._threads[0].join()
        self._read.set()
        self._threads[1].join()
        self._consumer.close()

    def _send(self) -> None:
        rest = bytes(RECORD_BYTES - _DUE.size)
        due = time.monotonic()
        while not self._over.is_set():
            while (now := time.monotonic()) >= due:
                self._producer.produce(
                    self._topic, _DUE.pack(due) + rest, partition=self._sent % self._partitions
                )
                self._sent += 1
                due += self._every_s
            self._producer.poll(0)
            time.sleep(max(due - now, 0))
        self._producer.flush(_PATIENCE_S)

    def _receive(self) -> None:
        try:
            while not self._read.is_set():
                message = self._consumer.poll(0.1)
                if message is None:
                    continue
                if message.error() is not None:
                    raise confluent_kafka.KafkaException(message.error())
                (due,) = _DUE.unpack_from(message.value() or b"")
                self._found.append((due, time.monotonic() - due))
        except confluent_kafka.KafkaException as e:
            self._failed.append(e)

    def felt(self, seconds: float) -> Felt:
        """Return the times of the records that are due in the next `seconds`, once all have come."""
        began = time.monotonic()
        time.sleep(seconds)
        sent, until = self._sent, time.monotonic() + _PATIENCE_S
        while len(self._found) < sent and not self._failed and time.monotonic() < until:
            time.sleep(0.01)
        if self._failed:
            raise self._failed[0]
        assert len(self._found) >= sent, f"{sent - len(self._found)} records did not come"
        return felt_of(took for due, took in list(self._found) if began <= due < began + seconds)
