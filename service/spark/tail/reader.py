"""Offsets of one partition read through the brokers, as the rows the archive would give. Needs pyarrow."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, Final

import pyarrow as pa

from service.base.errors import ConfigError
from service.spark.errors import DataLossError
from service.spark.options import ReadOptions
from service.spark.read.arrow import TYPES, arrow_schema, repeated, timestamps_of
from service.spark.schema import Column
from service.spark.selection import ALL_TIMES
from service.spark.tail.brokers import BrokerError, confluent_kafka
from service.spark.tail.options import TailOptions
from service.spark.tail.plan import TailSplit

log = logging.getLogger(__name__)

_AT_ONCE: Final = 2000
_POLL_S: Final = 0.5
_DEFAULTS: Final = {"check.crcs": "true", "fetch.wait.max.ms": "100"}
_LOG_APPEND_TIME: Final = 2
"""confluent-kafka's `TIMESTAMP_LOG_APPEND_TIME`; Kafka's own number, and Spark's, is one less."""


def read_tail(
    split: TailSplit, tail: TailOptions, options: ReadOptions, columns: Sequence[Column]
) -> Iterator[Any]:
    """The rows of `split` as `pyarrow.RecordBatch`es with these columns, in the order of their offsets.

    Raises `BrokerError` when the brokers do not answer in time, `DataLossError` when they do not have the
    offsets any more (with ``failOnDataLoss=false`` what there is of them is read).
    """
    schema = arrow_schema(columns)
    rows: list[Any] = []
    size = 0
    with closing(_Range(split, tail, options)) as messages:
        for message in messages:
            if split.times != ALL_TIMES and not _is_wanted(message.timestamp()[1], split):
                continue
            rows.append(message)
            size += len(message) + len(message.key() or b"")
            if size >= options.batch_bytes or len(rows) >= options.batch_rows:
                yield _record_batch(rows, split, schema)
                rows, size = [], 0
    if rows:
        yield _record_batch(rows, split, schema)


def _is_wanted(timestamp_ms: int, split: TailSplit) -> bool:
    return any(begin <= timestamp_ms < end for begin, end in split.times)


class _Range:
    """The messages of a split; a consumer of its own, in no group."""

    def __init__(self, split: TailSplit, tail: TailOptions, options: ReadOptions) -> None:
        self._kafka = confluent_kafka()
        self._split = split
        self._timeout_s = tail.timeout_ms / 1000
        self._fails = options.fail_on_data_loss
        settings = {
            **_DEFAULTS,
            "queued.max.messages.kbytes": str(max(1024, options.read_ahead_bytes >> 10)),
            **dict(tail.client),
            "group.id": "firn-spark",
            "enable.auto.commit": "false",
            "enable.partition.eof": "true",
            "auto.offset.reset": "error",
            "isolation.level": "read_committed" if options.read_committed else "read_uncommitted",
        }
        try:
            self._consumer = self._kafka.Consumer(settings)
        except self._kafka.KafkaException as e:
            raise ConfigError(f"the client of the brokers refuses its options: {e}") from e
        self._last_error = ""

    def close(self) -> None:
        self._consumer.close()

    def __iter__(self) -> Iterator[Any]:
        """Ends at the first message behind the range, or where the log ends if that is not before it."""
        split = self._split
        at = self._seek(split.begin_offset)
        heard = time.monotonic()
        while at < split.end_offset:
            # It waits for as many as it is asked for, so not for more than can come.
            for message in self._consumer.consume(min(_AT_ONCE, split.end_offset - at), _POLL_S):
                if (error := message.error()) is not None:
                    if error.code() == self._kafka.KafkaError._PARTITION_EOF:
                        # Offsets before it that no message had were markers, aborted, or compacted away.
                        at = max(at, message.offset())
                    else:
                        at = max(at, self._failed(error, at))
                    continue
                if message.offset() < at:
                    continue
                at, heard = message.offset() + 1, time.monotonic()
                if message.offset() >= split.end_offset:
                    break
                yield message
                # What the reader does with it is not time that brokers took.
                heard = time.monotonic()
            if at < split.end_offset and time.monotonic() - heard > self._timeout_s:
                raise BrokerError(
                    f"{split.topic}-{split.partition}: nothing of offsets {at} to {split.end_offset - 1} "
                    f"came within {self._timeout_s:g} s {self._last_error}".rstrip()
                )

    def _seek(self, offset: int) -> int:
        self._consumer.assign([self._partition(offset)])
        return offset

    def _partition(self, offset: int) -> Any:
        return self._kafka.TopicPartition(self._split.topic, self._split.partition, offset)

    def _failed(self, error: Any, at: int) -> int:
        """What to do about an error: wait for better, give up, or go on where the log begins now."""
        split, codes = self._split, self._kafka.KafkaError
        if error.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):
            start, end = self._consumer.get_watermark_offsets(self._partition(at), self._timeout_s)
            message = (
                f"{split.topic}-{split.partition}: of offsets {split.begin_offset} to {split.end_offset - 1} "
                f"those from {at} on are not there, the brokers have {start} to {end - 1}"
            )
            if self._fails:
                raise DataLossError(f"{message} (failOnDataLoss=false reads what there is)")
            log.warning("%s", message)
            return self._seek(start) if at < start < split.end_offset else split.end_offset
        if error.fatal() or error.code() in (codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_PARTITION):
            raise BrokerError(f"{split.topic}-{split.partition}: {error}")
        self._last_error = f"(last: {error})"
        return at


def _record_batch(rows: Sequence[Any], split: TailSplit, schema: Any) -> Any:
    arrays = [_COLUMNS[name](rows, split) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(name: str, value: Callable[[Any], Any]) -> Callable[[Sequence[Any], TailSplit], Any]:
    return lambda rows, _split: pa.array([value(row) for row in rows], TYPES[name])


_COLUMNS: Final[dict[str, Callable[[Sequence[Any], TailSplit], Any]]] = {
    "key": _column("key", lambda row: row.key()),
    "value": _column("value", lambda row: row.value()),
    "topic": lambda rows, split: repeated("topic", split.topic, len(rows)),
    "partition": lambda rows, split: repeated("partition", split.partition, len(rows)),
    "offset": _column("offset", lambda row: row.offset()),
    "timestamp": lambda rows, _split: timestamps_of(
        pa.array([row.timestamp()[1] for row in rows], pa.int64())
    ),
    "timestampType": _column("timestampType", lambda row: int(row.timestamp()[0] == _LOG_APPEND_TIME)),
    "headers": _column(
        "headers", lambda row: [{"key": key, "value": value} for key, value in row.headers() or ()] or None
    ),
}
