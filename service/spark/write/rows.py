"""Conversion of Arrow batches to records to send, a bounded number of bytes at a time. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from service.base.errors import FirnError
from service.spark.schema import HEADERS

SLICE_BYTES: Final = 4 << 20
SLICE_ROWS: Final = 4096
ANY_PARTITION: Final = -1
Headers = list[tuple[str, bytes | None]]


class RowError(FirnError):
    """A row that cannot be a record; the message says why."""


Record = tuple[str, int, bytes | None, bytes | None, int, Headers | None]
"""Topic, partition, key, value, timestamp (ms), headers; a plain tuple, as millions are made.

With `ANY_PARTITION` the producer's partitioner chooses. Timestamp 0 stands for the time of sending:
librdkafka cannot send a record of 1970's first millisecond.
"""


def records_of(batch: Any, topic: str | None, partition: int | None = None) -> Iterator[Record]:
    """Yield the rows of a `pyarrow.RecordBatch` in order; `topic` and `partition` override the columns.

    Columns are those of `options.COLUMNS`, of which only ``value`` is mandatory. The partitioner chooses the
    partition of a row without one; a row without a time (or from 1970 or before) gets that of sending. Raises
    `RowError` for a row without a topic, and for a partition below 0.
    """
    # Python objects are made a slice at a time, however large Spark's batches are.
    rows = max(1, min(SLICE_ROWS, SLICE_BYTES * batch.num_rows // max(1, batch.nbytes)))
    for begin in range(0, batch.num_rows, rows):
        yield from _slice_of(batch.slice(begin, rows), topic, partition)


def _slice_of(batch: Any, topic: str | None, partition: int | None) -> Iterator[Record]:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    topics = columns["topic"].to_pylist() if topic is None else repeat(topic, batch.num_rows)
    if topic is None and None in topics:
        raise RowError("a row has no topic (null); option topic names one for all rows")
    return zip(
        topics,
        _partitions(columns, partition, batch.num_rows),
        _bytes(columns.get("key"), batch.num_rows),
        _bytes(columns["value"], batch.num_rows),
        _times_ms(columns.get("timestamp"), batch.num_rows),
        _headers(columns.get(HEADERS), batch.num_rows),
        strict=True,
    )


def _partitions(columns: dict[str, Any], partition: int | None, count: int) -> Sequence[int] | repeat[int]:
    if partition is not None or "partition" not in columns:
        return repeat(ANY_PARTITION if partition is None else partition, count)
    found = columns["partition"].to_pylist()
    if negative := [one for one in found if one is not None and one < 0]:
        raise RowError(f"a row is for partition {negative[0]}; partitions are 0 or more, or null for any")
    return [ANY_PARTITION if one is None else one for one in found]


def _bytes(column: Any, count: int) -> Sequence[bytes | None] | repeat[None]:
    if column is None:
        return repeat(None, count)
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    found: Sequence[bytes | None] = column.to_pylist()
    return found


def _times_ms(column: Any, count: int) -> Sequence[int] | repeat[int]:
    """Return timestamps in milliseconds. A double is in seconds, as in Spark's cast to a timestamp."""
    if column is None:
        return repeat(0, count)
    if pa.types.is_floating(column.type):
        micros = [None if one is None else _micros(one) for one in column.to_pylist()]
    else:
        micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist()
    return [0 if one is None else max(0, one // 1000) for one in micros]


def _micros(seconds: float) -> int:
    if not abs(seconds) < 1 << 53:  # NaN, too
        raise RowError(f"a row has the timestamp {seconds}")
    return int(seconds * 1_000_000)


def _headers(column: Any, count: int) -> Sequence[Headers | None] | repeat[None]:
    if column is None or column.null_count == count:
        return repeat(None, count)
    # Keys and values are converted for the whole slice at once: a dictionary per header would be slow.
    lengths = pc.list_value_length(column).to_pylist()
    flat = column.flatten()
    if flat.null_count:
        raise RowError("a row has a header that is null")
    keys, values = (field.to_pylist() for field in flat.flatten())
    if None in keys:
        raise RowError("a row has a header whose key is null")
    pairs = zip(keys, values, strict=True)
    return [None if not length else [next(pairs) for _ in range(length)] for length in lengths]
