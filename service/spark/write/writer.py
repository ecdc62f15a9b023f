"""The sink that Spark calls: ``df.write.format("firn")``, ``df.writeStream.format("firn")``. Needs pyspark.

Delivery is at least once: a task reports success when the brokers took all its records, and a repeated task
or micro-batch sends its records again. Nothing that was sent can be taken back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from service.base.errors import ConfigError
from service.spark.write.options import WriteOptions

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WriteCommitMessage(WriterCommitMessage):
    """A task's commit message: the number of its records, all of them acknowledged."""

    records: int


class FirnWriter(DataSourceArrowWriter):
    """The writer of one batch write."""

    def __init__(self, options: WriteOptions, *, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError("mode overwrite is refused: records of a topic are not replaced; use append")
        check(options)
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriteCommitMessage:
        return send_all(self._options, iterator)

    def abort(self, messages: Sequence[WriteCommitMessage | None]) -> None:
        log.warning("the write has failed; %s", left_behind(messages))


class FirnStreamWriter(DataSourceStreamArrowWriter):
    """The writer of one stream's micro-batches."""

    def __init__(self, options: WriteOptions) -> None:
        check(options)
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriteCommitMessage:
        return send_all(self._options, iterator)

    def abort(self, messages: Sequence[WriteCommitMessage | None], batchId: int) -> None:
        log.warning("micro-batch %d has failed; %s", batchId, left_behind(messages))


def check(options: WriteOptions) -> None:
    """Raise `ConfigError` where the producer refuses its settings, which it checks when it is made."""
    from service.base.confluent import confluent_kafka, create_client
    from service.spark.write.sender import REMEDY

    create_client(confluent_kafka(REMEDY).Producer, dict(options.client))


def send_all(options: WriteOptions, batches: Iterator[Any]) -> WriteCommitMessage:
    """Send the batches of one task."""
    from service.spark.write.rows import records_of
    from service.spark.write.sender import sender_of

    count = 0
    with sender_of(dict(options.client)) as sender:
        for batch in batches:
            sender.send_all(records_of(batch, options.topic))
            count += batch.num_rows
    return WriteCommitMessage(count)


def left_behind(messages: Sequence[WriteCommitMessage | None]) -> str:
    """Describe what an aborted write has left in its topics."""
    count = sum(message.records for message in messages if message is not None)
    return f"{count:,} records of tasks that were done stay in their topics, and maybe some of other tasks"
