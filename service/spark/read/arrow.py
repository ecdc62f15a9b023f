"""Conversion of decoded columns to Arrow record batches, without copying buffers. Needs pyarrow."""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from functools import lru_cache, reduce
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from service.base.errors import CorruptionError
from service.records.columns import INT64_MAX, INT64_MIN, Columns
from service.spark.schema import ReadColumn
from service.spark.selection import Times

_UTC_MS: Final = pa.timestamp("ms", tz="UTC")
_UTC_US: Final = pa.timestamp("us", tz="UTC")
_VARIABLE: Final = ("key", "value", "headers")
_KEPT_ROWS: Final = 131_072
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


def _scalar(kind: Any, *buffers: bytes) -> Any:
    """Make an Arrow scalar from bytes; from a Python value pyarrow would import pandas, which takes 0.4 s."""
    return pa.Array.from_buffers(kind, 1, [None, *map(pa.py_buffer, buffers)])[0]


def _integer(kind: Any, value: int) -> Any:
    return _scalar(kind, struct.pack("=q" if kind == pa.int64() else "=i", value))


_ONE: Final = _integer(pa.int64(), 1)
_NO_HEADER: Final = _integer(pa.int32(), 0)


def arrow_schema(columns: Sequence[ReadColumn]) -> Any:
    """Return the Arrow schema that Spark expects for these columns."""
    return pa.schema([pa.field(c.name, TYPES[c.name], nullable=c.nullable) for c in columns])


def record_batch(columns: Columns, topic: str, partition: int, schema: Any) -> Any:
    """Return one batch with the columns of `schema`, which must be the decoded ones. Each is checked.

    Raises `CorruptionError` for columns that are not sound: sessions may read them without bounds checks.
    Raises `OverflowError` for a timestamp that Spark cannot hold: its microseconds end in the year 294247.
    """
    arrays = [_proved(name, columns, topic, partition) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def in_times(columns: Columns, times: Times) -> Any:
    """Return for each row whether its timestamp lies in one of the spans."""
    found = _numbers(pa.int64(), columns.count, columns.timestamps)
    masks = (
        pc.and_(
            pc.greater_equal(found, _integer(pa.int64(), max(begin, INT64_MIN))),
            pc.less_equal(found, _integer(pa.int64(), min(end - 1, INT64_MAX))),
        )
        for begin, end in times
    )
    return reduce(pc.or_, masks)


def in_keys(columns: Columns, keys: Collection[bytes]) -> Any:
    """Return for each row whether its key is one of `keys`; a missing key is none of them."""
    ends = accumulate(map(len, keys), initial=0)
    offsets = struct.pack(f"={len(keys) + 1}i", *ends)
    wanted = _bytes(pa.binary(), len(keys), None, memoryview(offsets), memoryview(b"".join(keys)))
    return pc.is_in(_proved("key", columns, "", 0), value_set=wanted)


def offset_batch(offsets: range, topic: str, partition: int, schema: Any) -> Any:
    """Return one batch of records of which only offsets, `topic` and `partition` are wanted."""
    count = len(offsets)
    start = _integer(pa.int64(), offsets.start - 1)
    columns = {
        "topic": lambda: repeated("topic", topic, count),
        "partition": lambda: repeated("partition", partition, count),
        "offset": lambda: pc.cumulative_sum(pa.repeat(_ONE, count), start=start),
    }
    return pa.RecordBatch.from_arrays([columns[name]() for name in schema.names], schema=schema)


def repeated(name: str, value: str | int, count: int) -> Any:
    """Return the column `name` of `count` rows that all have this topic, or partition."""
    return _kept(name, value)[:count] if count <= _KEPT_ROWS else _repeat(name, value, count)


@lru_cache(maxsize=2)
def _kept(name: str, value: str | int) -> Any:
    """Cache the column of a topic and of a partition: all batches of a task begin with the same."""
    return _repeat(name, value, _KEPT_ROWS)


def _repeat(name: str, value: str | int, count: int) -> Any:
    if isinstance(value, int):
        return pa.repeat(_integer(TYPES[name], value), count)
    text = value.encode()
    return pa.repeat(_scalar(TYPES[name], struct.pack("=ii", 0, len(text)), text), count)


def _proved(name: str, columns: Columns, topic: str, partition: int) -> Any:
    try:
        array = _array(name, columns, topic, partition)
        if name in _VARIABLE:
            array.validate(full=True)  # by default Arrow checks only that the last offset is in the data
    except pa.ArrowInvalid as e:
        raise CorruptionError(f"column {name}: {e}") from e
    return array


def _array(name: str, c: Columns, topic: str, partition: int) -> Any:
    match name:
        case "key":
            return _bytes(pa.binary(), c.count, c.key_validity, c.key_offsets, c.key_data)
        case "value":
            return _bytes(pa.binary(), c.count, c.value_validity, c.value_offsets, c.value_data)
        case "topic":
            return repeated("topic", topic, c.count)
        case "partition":
            return repeated("partition", partition, c.count)
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
    """Convert an int64 array to Spark's timestamps; `OverflowError` for one that those cannot hold."""
    try:
        return milliseconds.cast(_UTC_MS).cast(_UTC_US)
    except pa.ArrowInvalid as e:
        raise OverflowError(
            "a timestamp does not fit into microseconds; a schema without the timestamp column reads the rest"
        ) from e


def _headers(c: Columns) -> Any:
    """Return ``list<struct<key, value>>``: one list per row, null where a record has none, as in Spark."""
    assert c.header_lists is not None
    entries = c.header_lists[c.count]
    ends = _numbers(pa.int32(), c.count + 1, c.header_lists)
    has_any = pc.greater(pc.subtract(ends[1:], ends[:-1]), _NO_HEADER)
    keys = _bytes(pa.string(), entries, None, c.header_key_offsets, c.header_key_data)
    values = _bytes(
        pa.binary(), entries, c.header_value_validity, c.header_value_offsets, c.header_value_data
    )
    pairs = pa.Array.from_buffers(_HEADER, entries, [None], children=[keys, values])
    validity = has_any.buffers()[1]
    return pa.Array.from_buffers(
        TYPES["headers"], c.count, [validity, _buffer(c.header_lists)], children=[pairs]
    )
