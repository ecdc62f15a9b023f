"""Decoded columns as Arrow record batches: buffers handed over, not copied. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from service.records.columns import Columns
from service.spark.schema import Column

_UTC_MS: Final = pa.timestamp("ms", tz="UTC")
_UTC_US: Final = pa.timestamp("us", tz="UTC")
_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
TYPES: Final[dict[str, Any]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": _UTC_US,
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", _HEADER)),
}


def arrow_schema(columns: Sequence[Column]) -> Any:
    """The Arrow schema that Spark expects for these columns."""
    return pa.schema([pa.field(c.name, TYPES[c.name], nullable=c.nullable) for c in columns])


def record_batch(columns: Columns, topic: str, partition: int, schema: Any) -> Any:
    """One batch with the columns of `schema`, which are those that were decoded.

    Raises `OverflowError` for a timestamp that Spark cannot hold: its microseconds end in the year 294247.
    """
    arrays = [_array(name, columns, topic, partition) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def offset_batch(offsets: range, topic: str, partition: int, schema: Any) -> Any:
    """One batch of records of which no more is wanted than their offsets, `topic` and `partition`."""
    count = len(offsets)
    ones = pa.repeat(pa.scalar(1, pa.int64()), count)
    columns = {
        "topic": pa.repeat(pa.scalar(topic, pa.string()), count),
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), count),
        "offset": pc.cumulative_sum(ones, start=offsets.start - 1),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _array(name: str, c: Columns, topic: str, partition: int) -> Any:
    match name:
        case "key":
            return _bytes(pa.binary(), c.count, c.key_validity, c.key_offsets, c.key_data)
        case "value":
            return _bytes(pa.binary(), c.count, c.value_validity, c.value_offsets, c.value_data)
        case "topic":
            return pa.repeat(pa.scalar(topic, pa.string()), c.count)
        case "partition":
            return pa.repeat(pa.scalar(partition, pa.int32()), c.count)
        case "offset":
            return _numbers(pa.int64(), c.count, c.offsets)
        case "timestamp":
            return timestamps_of(_numbers(pa.int64(), c.count, c.timestamps))
        case "timestampType":
            return _numbers(pa.int32(), c.count, c.timestamp_types)
    return _headers(c)


def _buffer(view: memoryview | None) -> Any:
    return None if view is None else pa.py_buffer(view)


def _numbers(kind: Any, count: int, values: memoryview | None) -> Any:
    return pa.Array.from_buffers(kind, count, [None, _buffer(values)])


def _bytes(
    kind: Any, count: int, validity: memoryview | None, offsets: memoryview | None, data: memoryview | None
) -> Any:
    return pa.Array.from_buffers(kind, count, [_buffer(validity), _buffer(offsets), _buffer(data)])


def timestamps_of(milliseconds: Any) -> Any:
    """An int64 array as Spark's timestamps; `OverflowError` for one that those cannot hold."""
    try:
        return milliseconds.cast(_UTC_MS).cast(_UTC_US)
    except pa.ArrowInvalid as e:
        raise OverflowError(
            "a timestamp does not fit into microseconds; a schema without the timestamp column reads the rest"
        ) from e


def _headers(c: Columns) -> Any:
    """``list<struct<key, value>>``: one list per row, null where a record has none, as Spark has it."""
    assert c.header_lists is not None
    entries = c.header_lists[c.count]
    ends = _numbers(pa.int32(), c.count + 1, c.header_lists)
    has_any = pc.greater(pc.subtract(ends[1:], ends[:-1]), 0)
    keys = _bytes(pa.string(), entries, None, c.header_key_offsets, c.header_key_data)
    values = _bytes(
        pa.binary(), entries, c.header_value_validity, c.header_value_offsets, c.header_value_data
    )
    pairs = pa.Array.from_buffers(_HEADER, entries, [None], children=[keys, values])
    validity = has_any.buffers()[1]
    return pa.Array.from_buffers(
        TYPES["headers"], c.count, [validity, _buffer(c.header_lists)], children=[pairs]
    )
