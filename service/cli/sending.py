"""Sending of lines as records: `firn produce`."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from service.base.confluent import create_client
from service.base.errors import FirnError
from service.cli.librdkafka_client import Connection, RecordsError, settings_of_args
from service.cli.line_input import LineInput
from service.cli.progress import Progress
from service.cli.record_lines import LineError, LineRecord, line_reader

_NOW: Final = 0
_TRANSACTION: Final = "transactional.id"
_STOP_S: Final = 5.0
"""Time for what is queued when a signal stops the command"""
_TOPIC_S: Final = 5.0
"""Time for a topic that brokers create by themselves"""


class Sending:
    """One producer and what is known of the records that it was given."""

    def __init__(self, args: argparse.Namespace, kafka: Any) -> None:
        self._topic: str = args.topic
        self._connection, self._kafka = Connection(args.bootstrap_server), kafka
        self._key = None if args.key is None else args.key.encode()
        self._headers: list[tuple[str, bytes | None]] = args.header
        self._partition: int | None = args.partition
        null = None if args.null is None else args.null.encode()
        self._read: Callable[[bytes], LineRecord] = line_reader(args.format, args.key_separator, null)
        self._is_plain = (
            args.format == "text" and args.key_separator is None and null is None
            and args.key is None and not args.header and args.partition is None
        )  # fmt: skip
        self._given = self._failed = 0
        self._first_failure = ""
        self._progress = Progress("sent", beside=sys.stdin)
        acks = {} if args.acks == "all" else {"acks": args.acks, "enable.idempotence": "false"}
        settings = {
            "enable.idempotence": "true",
            "partitioner": "murmur2_random",  # a key goes to the partition that Java's clients choose
            "linger.ms": "10",
            "message.max.bytes": "104000000",  # what fits into socket.request.max.bytes; brokers judge it
            "queue.buffering.max.messages": "200000",
            "queue.buffering.max.kbytes": "131072",
            "compression.type": args.compression,
            **acks,
            **settings_of_args(args, self._connection),
            "on_delivery": self._on_delivery,
            "delivery.report.only.error": True,
        }
        self._is_transaction = _TRANSACTION in settings
        self._producer = self._connection.client = create_client(kafka.Producer, settings)

    def send_lines(self, lines: LineInput) -> None:
        """Send a record for each line, and wait until brokers have all of them.

        Raises `LineError` with the line's number, `RecordsError`, and `OSError`. What was sent before stays,
        unless it is a transaction, of which nothing does.
        """
        self._begin()
        try:
            self._send_all(lines)
            self._settle()
            if self._is_transaction:
                self._connection.until_answered(self._producer.commit_transaction)
        except KeyboardInterrupt:
            self._stop()
            raise
        except (FirnError, OSError):
            if self._is_transaction:
                self._abort()
            else:
                self._settle()
            raise

    def _begin(self) -> None:
        """Wait for a broker, and for the topic, which brokers may create by themselves."""
        ends = time.monotonic() + _TOPIC_S
        while (problem := self._topic_problem()) is not None:
            if time.monotonic() > ends or problem.code() not in self._passing():
                raise RecordsError(f"{self._topic}: {problem.str()}")
            time.sleep(0.1)
        if self._is_transaction:
            self._connection.until_answered(self._producer.init_transactions)
            self._producer.begin_transaction()

    def _topic_problem(self) -> Any:
        found = self._connection.until_answered(
            lambda seconds: self._producer.list_topics(self._topic, timeout=seconds)
        )
        return found.topics[self._topic].error

    def _passing(self) -> tuple[int, ...]:
        error = self._kafka.KafkaError
        return (error.UNKNOWN_TOPIC_OR_PART, error.LEADER_NOT_AVAILABLE)

    def _send_all(self, lines: LineInput) -> None:
        send = self._send_plain if self._is_plain else self._send
        for batch in lines.batches(self._look_round):
            given = self._given
            try:
                for line in batch:
                    send(line)
            except LineError as e:
                raise LineError(f"line {lines.number + 1 + self._given - given}: {e}") from e
            self._look_round()
            self._progress.show(self._given)

    def _send_plain(self, line: bytes) -> None:
        try:
            self._producer.produce(self._topic, line)
        except (BufferError, self._kafka.KafkaException):
            self._produce(line, None, -1, _NOW, ())
        else:
            self._given += 1

    def _send(self, line: bytes) -> None:
        record = self._read(line)
        key = self._key if record.key is None else record.key
        partition = record.partition if self._partition is None else self._partition
        self._produce(record.value, key, partition, record.timestamp_ms, (*record.headers, *self._headers))

    def _produce(self, value: Any, key: Any, partition: int, timestamp_ms: int, headers: Any) -> None:
        """Queue a record, and wait while there is no room."""
        while True:
            try:
                self._producer.produce(
                    self._topic, value, key, partition, timestamp=timestamp_ms, headers=[*headers]
                )
            except BufferError:
                self._connection.serve(self._producer.poll, 0.1)
                self._look_round()
            except self._kafka.KafkaException as e:
                raise LineError(f"it was not taken: {e.args[0].str()}") from e
            else:
                self._given += 1
                return

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is None:
            return
        self._failed += 1
        if not self._first_failure:
            number = message.partition()
            place = self._topic if number is None or number < 0 else f"{self._topic}-{number}"
            self._first_failure = f"{place}: {error.str()}"

    def _look_round(self) -> None:
        """Hear of records that failed, and tell where none is taken any more. Raises `RecordsError`."""
        self._connection.serve(self._producer.poll, 0)
        self._check()
        waiting = len(self._producer)
        self._connection.tell_stall(self._given - waiting, waiting)

    def _check(self) -> None:
        self._connection.check()
        if self._failed:
            raise RecordsError(
                f"brokers did not take {self._failed} of {self._given} records, the first because of"
                f" {self._first_failure}"
            )

    def _settle(self) -> None:
        """Wait until brokers have what was sent. Raises `RecordsError`."""
        while waiting := self._connection.serve(self._producer.flush, 0.5):
            self._connection.check()
            self._connection.tell_stall(self._given - waiting, waiting)
        self._progress.end()
        self._check()

    def _stop(self) -> None:
        """Give what is queued some time, drop the rest, and tell what brokers have."""
        self._progress.end()
        if self._is_transaction:
            self._abort()
            print("firn produce: stopped: its transaction was aborted", file=sys.stderr)
            return
        if self._connection.serve(self._producer.flush, _STOP_S):
            self._producer.purge()
            self._connection.serve(self._producer.flush, _STOP_S)
        lost = f", {self._failed:,} were not acknowledged" if self._failed else ""
        had = self._given - self._failed
        print(f"firn produce: stopped: brokers have {had:,} records{lost}", file=sys.stderr)

    def _abort(self) -> None:
        # Where no broker answers, the coordinator aborts it after transaction.timeout.ms.
        with contextlib.suppress(self._kafka.KafkaException):
            self._producer.abort_transaction(_STOP_S)
