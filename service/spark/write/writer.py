"""A write, as Spark sees it: ``df.write.format("firn")``, ``df.writeStream.format("firn")``. Needs pyspark.

At least once: a task says that it is done when the brokers took all its records, and what a task or a
micro-batch has sent before it fails is sent again when it is repeated. Nothing can be taken back.
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
class Sent(WriterCommitMessage):
    """What one task has sent, all of it acknowledged."""

    records: int


class FirnWriter(DataSourceArrowWriter):
    """One batch write."""

    def __init__(self, options: WriteOptions, *, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError("mode overwrite is refused: records of a topic are not replaced; use append")
        check(options)
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Sent:
        return send_all(self._options, iterator)

    def abort(self, messages: Sequence[Sent | None]) -> None:
        log.warning("the write has failed; %s", left_behind(messages))


class FirnStreamWriter(DataSourceStreamArrowWriter):
    """The micro-batches of one stream."""

    def __init__(self, options: WriteOptions) -> None:
        check(options)
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Sent:
        return send_all(self._options, iterator)

    def abort(self, messages: Sequence[Sent | None], batchId: int) -> None:
        log.warning("micro-batch %d has failed; %s", batchId, left_behind(messages))


def check(options: WriteOptions) -> None:
    """`ConfigError` where the producer would refuse its settings. It tells only when it is made."""
    from service.spark.write.sender import confluent_kafka, made

    made(confluent_kafka().Producer, dict(options.client))


def send_all(options: WriteOptions, batches: Iterator[Any]) -> Sent:
    """What a task does."""
    from service.spark.write.rows import records_of
    from service.spark.write.sender import sender_of

    count = 0
    with sender_of(dict(options.client)) as sender:
        for batch in batches:
            sender.send_all(records_of(batch, options.topic))
            count += batch.num_rows
    return Sent(count)


def left_behind(messages: Sequence[Sent | None]) -> str:
    """What an aborted write has left in its topics, in words."""
    count = sum(message.records for message in messages if message is not None)
    return f"{count:,} records of tasks that were done stay in their topics, and maybe some of other tasks"
