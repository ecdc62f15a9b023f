"""Sender of records to brokers, acknowledged or an error: shared by the sink and `firn pipeline replay`.

Memory is bounded by ``queue.buffering.max.kbytes``, time by ``delivery.timeout.ms``: after that an
unacknowledged record is an error, which ends the sending task. Needs confluent-kafka.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from service.base.confluent import confluent_kafka, create_client
from service.base.errors import StorageError
from service.spark.write.rows import ANY_PARTITION, Headers, Record

log = logging.getLogger(__name__)

REMEDY: Final = (
    "to write to brokers the Python of the driver and of every executor needs it: pip install confluent-kafka"
)
POLL_S: Final = 0.1
TOPIC_S: Final = 15.0
"""How long to retry while brokers answer that the topic is unknown: a new topic takes a moment to appear."""
STOP_S: Final = 2.0
_RECORDS_PER_POLL: Final = 256
Acknowledged = Callable[[int, int], None]
"""Callback with the number that the record was sent with, and its bytes."""


class SendError(StorageError):
    """A record that brokers did not take; the message names topic, partition and cause."""


class RecordSender:
    """One producer, used by one thread: callbacks run inside `send`, `wait` and `stop`.

    Records of one sender for one partition arrive in the order of `send`, also where librdkafka sends them
    again, and without a gap until `SendError` is raised. It calls `acknowledged` for each record that the
    brokers took, and `idle` whenever it waits for brokers; `idle` may raise to give up.
    """

    def __init__(
        self,
        settings: Mapping[str, str],
        *,
        acknowledged: Acknowledged | None = None,
        idle: Callable[[], None] = lambda: None,
    ) -> None:
        self._kafka = confluent_kafka(REMEDY)
        self._acknowledged = acknowledged
        self._idle = idle
        self._failure: str | None = None
        self._last_error = ""
        self._partitions: dict[str, int] = {}
        self._since_poll = 0
        self._timeout_s = _timeout_s(settings)
        self._producer = create_client(
            self._kafka.Producer,
            {
                **settings,
                "on_delivery": partial(self._on_delivery, None),
                "error_cb": self._on_error,
                # librdkafka calls Python for every record, or only for those that failed.
                "delivery.report.only.error": acknowledged is None,
            },
        )

    def send_all(self, records: Iterable[Record]) -> None:
        """Send many records, in two thirds of the time of `send`."""
        produce, partitions, refused = self._producer.produce, self._partitions, self._kafka.KafkaException
        for record in records:
            topic, target, key, value, timestamp_ms, headers = record
            if target >= partitions.get(topic, ANY_PARTITION):
                self.send(record)
                continue
            try:
                produce(topic, value, key, target, timestamp=timestamp_ms, headers=headers)
            except (BufferError, refused):
                self.send(record)
            self._since_poll += 1
            if self._since_poll >= _RECORDS_PER_POLL:
                self.poll(0)

    def send(self, record: Record, number: int | None = None) -> None:
        """Queue one record, and wait while there is no room; `SendError` if an earlier one has failed."""
        topic, target, key, value, timestamp_ms, headers = record
        partitions = self._partitions.get(topic)
        if partitions is None:
            partitions = self._count_partitions(topic)
        if target >= partitions:
            raise SendError(f"{topic}-{target}: the topic has {partitions} partitions")
        more = (
            {} if number is None else {"on_delivery": partial(self._on_delivery, (number, _size(key, value)))}
        )
        was_empty = False
        while True:
            try:
                self._producer.produce(
                    topic, value, key, target, timestamp=timestamp_ms, headers=headers, **more
                )
                break
            except BufferError:
                if was_empty:
                    raise SendError(
                        f"{topic}: a record of {_size(key, value, headers):,} bytes does not fit into "
                        "queue.buffering.max.kbytes, which bounds what is in flight"
                    ) from None
                was_empty = not len(self._producer)
                self._wait_for_room()
            except self._kafka.KafkaException as e:
                raise SendError(
                    self._failure_text(topic, target, _size(key, value, headers), e.args[0])
                ) from e
        self._since_poll += 1
        if self._since_poll >= _RECORDS_PER_POLL:
            self.poll(0)

    def poll(self, seconds: float) -> None:
        """Handle delivery reports for at most `seconds`; `SendError` where a record was not taken."""
        self._since_poll = 0
        self._producer.poll(seconds)
        self.check()

    def check(self) -> None:
        if self._failure is not None:
            raise SendError(self._failure)

    def wait(self) -> None:
        """Wait until the brokers took everything. Raises `SendError`."""
        while self._producer.flush(POLL_S):
            self._idle()
            self.check()
        self.check()
        self._last_error = ""
        self._partitions.clear()  # partitions may be added before this sender is used again

    def stop(self) -> bool:
        """Drop what is queued; return whether nothing is in flight any more. Sent records stay sent."""
        self._producer.purge(in_queue=True, in_flight=False, blocking=True)
        return not self._producer.flush(STOP_S)

    def close(self) -> None:
        """Drop the producer, whose callbacks would keep it alive; what is in flight is given up."""
        del self._producer

    def _wait_for_room(self) -> None:
        self._producer.poll(POLL_S)
        self._idle()
        self.check()

    def _count_partitions(self, topic: str) -> int:
        """Fetch the number of a topic's partitions, before its first record is sent.

        Records produced before librdkafka knows a topic's partitions wait in another queue, and records
        produced later would overtake them.
        """
        kafka, began = self._kafka, time.monotonic()
        while True:
            waited_s = time.monotonic() - began
            try:
                found = self._producer.list_topics(topic, timeout=min(5.0, self._timeout_s)).topics[topic]
                if found.error is None and found.partitions:
                    self._partitions[topic] = len(found.partitions)
                    return len(found.partitions)
                cause, limit_s = found.error, min(TOPIC_S, self._timeout_s)
            except kafka.KafkaException as e:
                cause, limit_s = e.args[0], self._timeout_s
            if waited_s > limit_s or _is_final(kafka, cause):
                last = f" ({self._last_error})" if self._last_error else ""
                raise SendError(f"{topic}: brokers did not describe its partitions: {cause}{last}")
            self._wait_for_room()

    def _on_delivery(self, sent: tuple[int, int] | None, error: Any, message: Any) -> None:
        if error is None:
            if sent is not None and self._acknowledged is not None:
                self._acknowledged(*sent)
        elif self._failure is None:
            size = _size(message.key(), message.value())
            self._failure = self._failure_text(message.topic(), message.partition(), size, error)

    def _on_error(self, error: Any) -> None:
        """Keep the last error. Librdkafka retries by itself; on a timeout this error is the cause."""
        self._last_error = error.str()

    def _failure_text(self, topic: str, partition: int | None, size: int, error: Any) -> str:
        where = topic if partition is None or partition < 0 else f"{topic}-{partition}"
        codes, failure = (
            self._kafka.KafkaError,
            f"{where}: a record of {size:,} bytes was not accepted: {error.str()}",
        )
        if error.code() == codes.MSG_SIZE_TOO_LARGE:
            return f"{failure}; max.message.bytes of the topic bounds it, and the batches of batch.size"
        if error.code() == codes._MSG_TIMED_OUT:
            last = f", last: {self._last_error}" if self._last_error else ""
            return f"{failure} within {self._timeout_s:g} s (delivery.timeout.ms{last})"
        return failure


@contextmanager
def sender_of(settings: Mapping[str, str]) -> Iterator[RecordSender]:
    """Yield a sender for one task; when the block ends the brokers have everything, or it raises.

    A worker's next task with the same settings gets it again: a stream's tasks are short, and each producer
    costs a connection, a producer id, and state that brokers keep for a day.
    """
    key = (os.getpid(), tuple(sorted(settings.items())))
    sender = _kept.pop(key, None)
    while _kept:
        _kept.popitem()[1].close()
    sender = sender or RecordSender(settings)
    try:
        yield sender
        sender.wait()
    except BaseException:
        sender.stop()
        sender.close()
        raise
    _kept[key] = sender


_kept: dict[tuple[int, tuple[tuple[str, str], ...]], RecordSender] = {}


def _timeout_s(settings: Mapping[str, str]) -> float:
    """Return librdkafka's delivery timeout in seconds; its 0 means no limit."""
    name = "message.timeout.ms" if "message.timeout.ms" in settings else "delivery.timeout.ms"
    text = settings.get(name, "")
    return int(text) / 1000 or float("inf") if text.isdecimal() else 300.0


def _is_final(kafka: Any, cause: Any) -> bool:
    """Return whether another attempt would fail the same way."""
    codes = kafka.KafkaError
    return cause is not None and cause.code() in (
        codes.TOPIC_EXCEPTION,
        codes.TOPIC_AUTHORIZATION_FAILED,
        codes.CLUSTER_AUTHORIZATION_FAILED,
        codes._FATAL,
    )


def _size(key: bytes | None, value: bytes | None, headers: Headers | None = None) -> int:
    more = sum(len(name.encode()) + len(data or b"") for name, data in headers or ())
    return len(key or b"") + len(value or b"") + more
