"""DataFrames as rows that a Kafka consumer could have read."""

from __future__ import annotations

from typing import Any

from tests.spark.filling import Row

COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


def rows_of(frame: Any) -> list[Row]:
    """The rows of a DataFrame that has every column, in order."""
    found = frame.selectExpr(*COLUMNS[:5], "unix_millis(timestamp)", "timestampType", "headers").collect()
    rows = [
        Row(*row[:7], None if row[7] is None else tuple((h.key, _bytes(h.value)) for h in row[7]))
        for row in found
    ]
    rows = [row._replace(key=_bytes(row.key), value=_bytes(row.value)) for row in rows]
    return sorted(rows, key=lambda row: (row.topic, row.partition, row.offset))


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
