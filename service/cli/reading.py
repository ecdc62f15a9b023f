"""Reading of records as lines: `firn consume`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from service.base.confluent import create_client
from service.cli.librdkafka_client import (
    Connection,
    RecordsError,
    partitions_of,
    settings_of_args,
)
from service.cli.record_lines import ReadRecord, line_writer
from service.cli.record_options import Place
from service.cli.tier_borders import TierBorders

_AT_ONCE: Final = 5000
_WAIT_S: Final = 0.1
_COMMIT_EVERY_S: Final = 1.0
_FOREVER: Final = 2**63 - 1


class Reading:
    """One consumer, where it is to end, and how records are shown."""

    def __init__(self, args: argparse.Namespace, kafka: Any) -> None:
        self._kafka, self._topic, self._group = kafka, args.topic, args.group
        self._connection = Connection(args.bootstrap_server)
        columns = args.show if not args.tier or "tier" in args.show else ("tier", *args.show)
        self._write = line_writer(args.format, columns)
        self._is_plain = args.format == "text" and not columns
        self._left: int = args.records or _FOREVER
        self._consumer = create_client(
            kafka.Consumer,
            {
                "group.id": args.group
                or "firn-consume",  # librdkafka wants one; without --group none is joined
                "enable.auto.commit": "false",
                "enable.partition.eof": "true",
                "auto.offset.reset": "latest" if args.start.kind == "end" else "earliest",
                "isolation.level": args.isolation,
                "fetch.message.max.bytes": "8388608",
                "queued.max.messages.kbytes": "131072",
                **settings_of_args(args, self._connection),
            },
        )
        self._ends: dict[int, int] = {}
        """Partition -> offset before which it ends; of those that are read without a group."""
        self._is_bounded = args.stop is not None
        partitions = partitions_of(self._consumer, self._connection, self._topic)
        if args.group:
            self._consumer.subscribe([self._topic])
        else:
            self._assign(args, partitions)
        wants_tier = "tier" in columns or args.tier
        self._borders = TierBorders(args, self._topic, partitions) if wants_tier else None

    def _assign(self, args: argparse.Namespace, partitions: list[int]) -> None:
        for number in args.partition:
            if number not in partitions:
                raise RecordsError(f"{self._topic} has no partition {number}")
        chosen = [number for number in partitions if not args.partition or number in args.partition]
        starts = self._offsets(chosen, args.start)
        self._ends = self._offsets(chosen, args.stop) if args.stop else dict.fromkeys(chosen, _FOREVER)
        wanted = {number: starts[number] for number in chosen if starts[number] < self._ends[number]}
        self._ends = {number: self._ends[number] for number in wanted}
        place = self._kafka.TopicPartition
        self._consumer.assign([place(self._topic, number, offset) for number, offset in wanted.items()])

    def _offsets(self, partitions: list[int], place: Place) -> dict[int, int]:
        """Return the offset of a place in each partition."""
        ask = self._connection.until_answered
        if place.kind == "time":
            wanted = [self._kafka.TopicPartition(self._topic, number, place.number) for number in partitions]
            found = ask(lambda seconds: self._consumer.offsets_for_times(wanted, timeout=seconds))
            at = {one.partition: one.offset for one in found}
            late = [number for number in partitions if at[number] < 0]
            return at | (self._offsets(late, Place("end")) if late else {})
        offsets = {}
        for number in partitions:
            one = self._kafka.TopicPartition(self._topic, number)
            low, high = ask(partial(self._watermarks, one))
            offsets[number] = {
                "beginning": low,
                "end": high,
                "offset": min(max(place.number, low), high) if place.kind == "offset" else 0,
                "last": max(high - place.number, low),
            }[place.kind]
        return offsets

    def _watermarks(self, place: Any, seconds: float) -> Any:
        return self._consumer.get_watermark_offsets(place, timeout=seconds)

    def print_records(self, out: Any) -> None:
        """Write lines until the end that was asked for; commit a group's offsets behind what is out."""
        committed_at = time.monotonic()
        while self._left and (self._ends or self._group):
            messages = self._consumer.consume(min(_AT_ONCE, self._left), _WAIT_S)
            self._connection.check()
            if not messages:
                continue
            lines = [*self._lines(messages)]
            self._left -= len(lines)
            out.write(b"".join(lines))
            out.flush()
            if self._group and lines and time.monotonic() - committed_at > _COMMIT_EVERY_S:
                self._commit()
                committed_at = time.monotonic()

    def _lines(self, messages: list[Any]) -> Iterator[bytes]:
        for message in messages:
            if (error := message.error()) is not None:
                self._met(message, error)
                continue
            if not self._group and not self._is_before_its_end(message.partition(), message.offset()):
                continue
            if self._is_plain:
                value = message.value()
                yield b"null\n" if value is None else value + b"\n"
            else:
                yield self._write(self._record(message))

    def _is_before_its_end(self, partition: int, offset: int) -> bool:
        end = self._ends.get(partition, 0)
        if offset >= end - 1:
            self._end(partition)
        return offset < end

    def _met(self, message: Any, error: Any) -> None:
        """Take what is no record: the end of a partition, or an error."""
        if error.code() != self._kafka.KafkaError._PARTITION_EOF:
            if not error.retriable():
                raise RecordsError(f"{self._topic}: {error.str()}")
        elif self._is_bounded:
            # Nothing behind it can be read now, be it compacted, a marker or of an open transaction.
            self._end(message.partition())

    def _end(self, partition: int) -> None:
        if self._ends.pop(partition, None) is not None:
            self._consumer.incremental_unassign([self._kafka.TopicPartition(self._topic, partition)])

    def _record(self, message: Any) -> ReadRecord:
        kind, timestamp_ms = message.timestamp()
        offset, partition = message.offset(), message.partition()
        return ReadRecord(
            self._topic, partition, offset,
            -1 if kind == self._kafka.TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
            message.key(), message.value(), message.headers() or (),
            None if self._borders is None else self._borders.tier_of(partition, offset),
        )  # fmt: skip

    def _commit(self) -> None:
        try:
            self._consumer.commit(asynchronous=False)
        except self._kafka.KafkaException as e:
            if e.args[0].code() != self._kafka.KafkaError._NO_OFFSET:
                raise RecordsError(f"group {self._group}: {e.args[0].str()}") from e

    def close(self) -> None:
        """Commit what was printed, and leave the group."""
        if self._group:
            self._commit()
        self._consumer.close()
