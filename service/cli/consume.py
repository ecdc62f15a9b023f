"""`firn consume`: prints a topic's records as lines, from and to where it is told, or for a group."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple

from service.cli.arguments import positive
from service.cli.librdkafka_options import (
    Connection,
    RecordsError,
    add_librdkafka_option,
    create_client,
    partitions_of,
    settings_of_args,
)
from service.cli.record_lines import COLUMNS, FORMATS, ReadRecord, line_writer
from service.cli.tier_borders import TierBorders
from service.cli.topic import add_bootstrap_option

_AT_ONCE: Final = 5000
_WAIT_S: Final = 0.1
_COMMIT_EVERY_S: Final = 1.0
_FOREVER: Final = 2**63 - 1


class Place(NamedTuple):
    """An end of what is read: `kind` is beginning, end, offset, last (so many records) or time (in ms)."""

    kind: str
    number: int = 0


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "consume",
        help="print records as lines",
        description="Print the records of a topic, those that are there and then those that arrive. A PLACE"
        " is beginning, end, an offset, @TIME (ISO 8601, UTC without a zone, or milliseconds) or, for --from,"
        " -N: the last N records of each partition.",
    )
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "--partition",
        action="append",
        default=[],
        type=_number,
        metavar="N",
        help="may be repeated; default: all",
    )
    parser.add_argument(
        "--from",
        dest="start",
        type=_start,
        default=Place("beginning"),
        metavar="PLACE",
        help="default: beginning",
    )
    parser.add_argument(
        "--to",
        dest="stop",
        type=_stop,
        metavar="PLACE",
        help="read up to there, without it; end is that of now",
    )
    parser.add_argument("-n", "--records", type=positive, metavar="N", help="end after so many records")
    parser.add_argument("--group", metavar="GROUP", help="read as a member, and commit what was printed")
    parser.add_argument(
        "--isolation", choices=("read_uncommitted", "read_committed"), default="read_committed",
        help="default: read_committed",
    )  # fmt: skip
    parser.add_argument(
        "--format", choices=FORMATS, default="text", help="of a line (default: text, the value)"
    )
    parser.add_argument(
        "--show", type=_columns, default=(), metavar="FIELD,…",
        help=f"in front of each value, of {', '.join(COLUMNS)}; json has them all",
    )  # fmt: skip
    parser.add_argument(
        "--tier",
        action="store_true",
        help="say for each record whether it came from local disks or the bucket",
    )
    add_librdkafka_option(parser)
    add_bootstrap_option(parser)
    parser.set_defaults(run=run)


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) >= 2**31:
        raise argparse.ArgumentTypeError(f"expected a partition's number, found {text!r}")
    return int(text)


def _start(text: str) -> Place:
    if text.startswith("-") and text[1:].isascii() and text[1:].isdigit():
        return Place("last", min(int(text[1:]), _FOREVER))
    return _place(text, ("beginning", "end"))


def _stop(text: str) -> Place:
    return _place(text, ("end",))


def _place(text: str, words: Sequence[str]) -> Place:
    if text in words:
        return Place(text)
    if text.isascii() and text.isdigit():
        return Place("offset", min(int(text), _FOREVER))
    if text.startswith("@"):
        return Place("time", _time_ms(text[1:]))
    raise argparse.ArgumentTypeError(f"expected {', '.join(words)}, an offset or @TIME, found {text!r}")


def _time_ms(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) > 8:
        return min(int(text), _FOREVER)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a time as 2026-01-31T12:00:00Z, found {text!r}") from None
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in COLUMNS:
            raise argparse.ArgumentTypeError(f"expected fields of {', '.join(COLUMNS)}, found {name!r}")
    return names


def run(args: argparse.Namespace) -> int:
    from service.base.errors import ConfigError
    from service.client.librdkafka import confluent_kafka

    kafka = confluent_kafka()
    if args.group and (args.partition or args.stop or args.start.kind not in ("beginning", "end")):
        raise ConfigError(
            "--group reads from where the group is: it goes with --from beginning or end, for partitions"
            " without an offset, and neither with --to nor --partition"
        )
    reading = Reading(args, kafka)
    try:
        reading.print_records(sys.stdout.buffer)
    finally:
        reading.close()
    return 0


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
