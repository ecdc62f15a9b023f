"""Reading of records as lines: `firn consume`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from operator import methodcaller
from typing import Any, Final

from service.base.confluent import create_client
from service.cli.librdkafka_client import (
    Connection,
    RecordsError,
    partitions_of,
    settings_of_args,
)
from service.cli.progress import Progress
from service.cli.reader_check import reader_check
from service.cli.record_lines import Headers, ReadRecord, line_writer
from service.cli.record_options import Place
from service.cli.tier_borders import TierBorders

_AT_ONCE: Final = 5000
_WAIT_S: Final = 0.1
_COMMIT_EVERY_S: Final = 1.0
_LOOK_EVERY_S: Final = 5.0
_LOOK_S: Final = 2.0
_FOREVER: Final = 2**63 - 1
_END: Final = -1
_BEGINNING: Final = -2
_REBALANCED: Final = (
    "REBALANCE_IN_PROGRESS",
    "ILLEGAL_GENERATION",
    "UNKNOWN_MEMBER_ID",
    "STALE_MEMBER_EPOCH",
)

_headers_of: Final = methodcaller("headers")
"""A call that checks its result: of such a name the method returns a list without items *and* an error, which
the interpreter, where it has specialized the call, does not see until it crashes."""


class Reading:
    """One consumer, where it is to end, and how records are shown."""

    def __init__(self, args: argparse.Namespace, kafka: Any) -> None:
        self._kafka, self._topic, self._group = kafka, args.topic, args.group
        self._connection = Connection(args.bootstrap_server)
        columns = args.show if not args.tier or "tier" in args.show else ("tier", *args.show)
        self._write = line_writer(args.format, columns)
        self._is_plain = args.format == "text" and not columns
        self._left: int = args.records or _FOREVER
        self._progress = Progress("read", beside=sys.stdout)
        self._consumer = create_client(
            kafka.Consumer,
            {
                "group.id": args.group
                or "firn-consume",  # librdkafka wants one; without --group none is joined
                "enable.auto.commit": "false",
                "enable.auto.offset.store": "false",
                "enable.partition.eof": "true",
                "auto.offset.reset": "latest" if args.start.kind == "end" else "earliest",
                "isolation.level": args.isolation,
                "fetch.message.max.bytes": "8388608",
                "queued.max.messages.kbytes": "131072",
                "fetch.queue.backoff.ms": "10",  # else it rests for a second at 100,000 records
                **settings_of_args(args, self._connection),
            },
        )
        self._connection.client = self._consumer
        self._ends: dict[int, int] = {}
        """Partition -> offset before which it ends; of those that are read without a group."""
        self._printed: dict[int, int] = {}
        """Partition of this member -> offset behind what was printed and is not committed yet."""
        self._owned: set[int] = set()
        self._unreadable = 0
        self._is_bounded = args.stop is not None
        self._grows = not (args.group or args.partition or args.stop)
        """partitions that the topic gets later are read, too"""
        self._is_gone = False
        partitions = partitions_of(self._consumer, self._connection, self._topic)
        if args.group:
            self._consumer.subscribe(
                [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
            )
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
        if place.kind == "time":
            at = self._looked_up(partitions, place.number)
            late = [number for number in partitions if at[number] < 0]
            return at | (self._offsets(late, Place("end")) if late else {})
        if place.kind == "beginning":
            return self._looked_up(partitions, _BEGINNING)
        high = self._looked_up(partitions, _END)
        if place.kind == "end":
            return high
        low = self._looked_up(partitions, _BEGINNING)
        if place.kind == "last":
            return {number: max(high[number] - place.number, low[number]) for number in partitions}
        return {number: min(max(place.number, low[number]), high[number]) for number in partitions}

    def _looked_up(self, partitions: list[int], time_ms: int) -> dict[int, int]:
        """Return offsets by a time, or by one of ListOffsets' numbers, asking each leader once."""
        wanted = [self._kafka.TopicPartition(self._topic, number, time_ms) for number in partitions]
        found = self._connection.until_answered(
            lambda seconds: self._consumer.offsets_for_times(wanted, timeout=seconds)
        )
        for one in found:
            if one.error is not None:
                raise RecordsError(f"{self._topic}-{one.partition}: {one.error.str()}")
        return {one.partition: one.offset for one in found}

    def print_records(self, out: Any) -> None:
        """Write lines until the end that was asked for; commit a group's offsets behind what is out."""
        committed_at = looked_at = time.monotonic()
        has_reader = reader_check(out)
        while self._left and (self._ends or self._group):
            messages = self._connection.serve(self._consumer.consume, min(_AT_ONCE, self._left), _WAIT_S)
            self._connection.check()
            if messages:
                lines = [*self._lines(messages)]
                self._left -= len(lines)
                out.write(b"".join(lines))
                out.flush()
                self._note_printed(messages)
                self._progress.show(self._progress.records + len(lines))
            elif not has_reader():
                raise BrokenPipeError
            now = time.monotonic()
            if self._printed and now - committed_at > _COMMIT_EVERY_S:
                self._commit()
                committed_at = now
            if now - looked_at > _LOOK_EVERY_S:
                self._look_at_topic()
                looked_at = time.monotonic()

    def _look_at_topic(self) -> None:
        """Say where no broker answers any more; read partitions that are new. Raises `RecordsError` for a
        topic that was deleted."""
        try:
            found = self._consumer.list_topics(self._topic, timeout=_LOOK_S).topics[self._topic]
        except self._kafka.KafkaException:
            self._connection.tell_down()
            return
        self._connection.answered()
        if found.error is not None:
            is_gone = found.error.code() == self._kafka.KafkaError.UNKNOWN_TOPIC_OR_PART
            if is_gone and self._is_gone:  # a broker that has just started may not know it yet
                raise RecordsError(f"{self._topic}: {found.error.str()}")
            self._is_gone = is_gone
        elif self._grows:
            new = sorted(found.partitions.keys() - self._ends.keys())
            self._ends |= dict.fromkeys(new, _FOREVER)
            place = self._kafka.TopicPartition
            if new:
                self._consumer.incremental_assign([place(self._topic, number, 0) for number in new])

    def _note_printed(self, messages: list[Any]) -> None:
        if self._group:
            for message in messages:
                if message.error() is None and message.partition() in self._owned:
                    self._printed[message.partition()] = message.offset() + 1

    # Only what is printed is committed: a record that was read and not printed is another member's, or the
    # next run's.

    def _assigned(self, _: Any, places: list[Any]) -> None:
        self._owned |= {one.partition for one in places}

    def _revoked(self, _: Any, places: list[Any]) -> None:
        self._commit()
        self._lost(_, places)

    def _lost(self, _: Any, places: list[Any]) -> None:
        for one in places:
            self._owned.discard(one.partition)
            self._printed.pop(one.partition, None)

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
        if error.code() == self._kafka.KafkaError._MAX_POLL_EXCEEDED:
            print(
                f"firn consume: nobody read its output for longer than max.poll.interval.ms: it joins group"
                f" {self._group} anew, and prints records again that it had not committed",
                file=sys.stderr,
            )
        elif error.code() != self._kafka.KafkaError._PARTITION_EOF:
            # librdkafka looks for a coordinator also where no group is joined: that takes no right.
            is_needless = (
                not self._group and error.code() == self._kafka.KafkaError.GROUP_AUTHORIZATION_FAILED
            )
            if not error.retriable() and not is_needless:
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
            message.key(), message.value(), self._headers(message),
            None if self._borders is None else self._borders.tier_of(partition, offset),
        )  # fmt: skip

    def _headers(self, message: Any) -> Headers | None:
        """Return the headers; None, which is said, for names that Python's client cannot decode."""
        try:
            return _headers_of(message) or ()
        except SystemError as e:
            if not isinstance(e.__cause__, UnicodeDecodeError):
                raise
        if not self._unreadable:
            place = f"{self._topic}-{message.partition()} at offset {message.offset()}"
            print(
                f"firn consume: {place}: headers with a name that is not UTF-8 are left out", file=sys.stderr
            )
        self._unreadable += 1
        return None

    def _commit(self) -> bool:
        """Commit what was printed; False if the group is being rebalanced, and another member may print it
        again. Raises `RecordsError`."""
        if not self._printed:
            return True
        place = self._kafka.TopicPartition
        places = [place(self._topic, number, offset) for number, offset in self._printed.items()]
        try:
            self._consumer.commit(offsets=places, asynchronous=False)
        except self._kafka.KafkaException as e:
            if e.args[0].name() in _REBALANCED:
                return False
            raise RecordsError(f"group {self._group}: {e.args[0].str()}") from e
        self._printed = {}
        return True

    def close(self) -> None:
        """Commit what was printed, and leave the group."""
        self._progress.end()
        if self._unreadable > 1:
            print(f"firn consume: {self._unreadable} records had such headers", file=sys.stderr)
        if not self._commit():
            print("firn consume: the last records were printed, but not committed", file=sys.stderr)
        self._consumer.close()
