"""The tail read without Spark: as tasks do it, row by row comparable with what a consumer reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.spark.options import ReadOptions
from service.spark.schema import ReadColumn
from service.spark.tail.broker_connections import BrokerConnections
from service.spark.tail.options import TailOptions, parse_batch
from service.spark.tail.plan import TailSplit
from tests.spark.filling import Row

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


def options_of(bootstrap: str, topic: str, **more: object) -> tuple[ReadOptions, TailOptions]:
    """`more` with ``__`` for a dot."""
    given = {
        "url": "file:///none",
        "subscribe": topic,
        "bootstrap.servers": bootstrap,
        "includeHeaders": "true",
    }
    given |= {name.replace("__", "."): str(value) for name, value in more.items()}
    options, tail = parse_batch(given)
    assert isinstance(tail, TailOptions)
    return options, tail


def split_of(tail: TailOptions, topic: str, partition: int, begin: int, end: int, **other: Any) -> TailSplit:
    """What a plan would have made of these offsets; `other` are fields that it would have made otherwise."""
    brokers = BrokerConnections(tail)
    try:
        response = brokers.metadata([topic], 20)
    finally:
        brokers.close()
    split = TailSplit(
        topic, partition, begin, end, response.topics[0].topic_id, response.cluster_id, 100 * (end - begin)
    )
    return split._replace(**other)


def batches_of(
    split: TailSplit, options: ReadOptions, tail: TailOptions, columns: tuple[str, ...] = COLUMNS
) -> Any:
    """An iterator over the Arrow batches of a task."""
    from service.spark.tail.reader import read_tail

    return read_tail(split, tail, options, [ReadColumn(name) for name in columns])


def offsets_in(batches: Any) -> list[int]:
    return [offset for batch in batches for offset in batch["offset"].to_pylist()]


def rows_in(batches: Any) -> list[Row]:
    return [_row(row) for batch in batches for row in batch.to_pylist()]


def _row(row: Mapping[str, Any]) -> Row:
    headers = row["headers"]
    return Row(
        row["key"],
        row["value"],
        row["topic"],
        row["partition"],
        row["offset"],
        round(row["timestamp"].timestamp() * 1000),
        row["timestampType"],
        None if headers is None else tuple((one["key"], one["value"]) for one in headers),
    )
