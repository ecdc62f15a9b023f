"""Sending of lines as records: `firn produce`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import IO, Any, Final

from service.base.confluent import create_client
from service.cli.librdkafka_client import Connection, RecordsError, settings_of_args
from service.cli.progress import Progress
from service.cli.record_lines import LineError, LineRecord, line_reader

MOST_OF_A_LINE: Final = 128 << 20
"""Bytes; a longer line is an error rather than memory."""
_RECORDS_PER_POLL: Final = 1000
_NOW: Final = 0


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
        self._failed = 0
        self._first_failure = ""
        self._progress = Progress("sent")
        acks = {} if args.acks == "all" else {"acks": args.acks, "enable.idempotence": "false"}
        settings = {
            "enable.idempotence": "true",
            "linger.ms": "10",
            "message.max.bytes": "100000000",  # brokers say what is too large for a topic
            "queue.buffering.max.messages": "200000",
            "queue.buffering.max.kbytes": "131072",
            "compression.type": args.compression,
            **acks,
            **settings_of_args(args, self._connection),
            "on_delivery": self._on_delivery,
            "delivery.report.only.error": True,
        }
        self._producer = create_client(kafka.Producer, settings)

    def send_lines(self, lines: IO[bytes]) -> None:
        """Send a record for each line. Raises `LineError` with its number, and `RecordsError`."""
        self._connection.until_answered(
            lambda seconds: self._producer.list_topics(self._topic, timeout=seconds)
        )
        number = 0
        send = self._send_plain if self._is_plain else self._send
        while line := lines.readline(MOST_OF_A_LINE):
            number += 1
            if line.endswith(b"\n"):
                line = line[:-1]
            elif len(line) == MOST_OF_A_LINE:
                raise LineError(f"line {number} has more than {MOST_OF_A_LINE} bytes")
            try:
                send(line)
            except LineError as e:
                raise LineError(f"line {number}: {e}") from e
            if number % _RECORDS_PER_POLL == 0:
                self._producer.poll(0)
                self._check()
                self._progress.show(number)

    def _send_plain(self, line: bytes) -> None:
        try:
            self._producer.produce(self._topic, line)
        except (BufferError, self._kafka.KafkaException):
            self._produce(line, None, -1, _NOW, ())

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
                return
            except BufferError:
                self._producer.poll(0.1)
                self._check()
            except self._kafka.KafkaException as e:
                raise LineError(f"it was not taken: {e.args[0].str()}") from e

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is None:
            return
        self._failed += 1
        if not self._first_failure:
            self._first_failure = f"{message.topic()}-{message.partition()}: {error.str()}"

    def _check(self) -> None:
        self._connection.check()
        if self._failed:
            raise RecordsError(self._failures())

    def _failures(self) -> str:
        return f"brokers did not take {self._failed} records, the first because of {self._first_failure}"

    def finish(self) -> None:
        """Wait until brokers have what was sent. Raises `RecordsError`."""
        while self._producer.flush(0.5):
            self._connection.check()
        self._progress.end()
        self._check()
