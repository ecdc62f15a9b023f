"""Arrow batches that tasks return to Spark, without a JVM."""

from __future__ import annotations

import subprocess
import sys
from array import array

import pyarrow as pa
import pytest

from service.base.errors import ConfigError, CorruptionError
from service.records.builder import BatchBuilder
from service.records.columns import ColumnDecoder
from service.spark.schema import COLUMNS, HEADERS, NEVER_NULL, ReadColumn, schema_ddl
from tests.support.processes import REPOSITORY

ALL = [ReadColumn(name) for name in (*COLUMNS, HEADERS)]


def test_the_arrow_schema_is_the_one_that_spark_compares_with() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        IntegerType,
        LongType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    from service.spark.options import parse_options
    from service.spark.read.arrow import arrow_schema
    from service.spark.source import columns_of

    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    kinds = [
        BinaryType(),
        BinaryType(),
        StringType(),
        IntegerType(),
        LongType(),
        TimestampType(),
        IntegerType(),
    ]
    fields = [
        StructField(name, kind, name not in NEVER_NULL) for name, kind in zip(COLUMNS, kinds, strict=True)
    ]
    schema = StructType([*fields, StructField(HEADERS, ArrayType(header))])
    ddl = [f"{f.name} {f.dataType.simpleString()}{'' if f.nullable else ' NOT NULL'}" for f in schema]
    assert ", ".join(ddl) == schema_ddl(include_headers=True)
    options = parse_options({"url": "file:///x", "subscribe": "x", "includeHeaders": "true"})
    columns = columns_of(schema, options)
    assert columns == tuple(ReadColumn(name, name not in NEVER_NULL) for name in (*COLUMNS, HEADERS))
    assert arrow_schema(columns).equals(to_arrow_schema(schema, timezone="UTC"))
    without_nulls = StructType([StructField("offset", LongType(), nullable=False)])
    expected = to_arrow_schema(without_nulls, timezone="UTC")
    assert arrow_schema(columns_of(without_nulls, options)).equals(expected)
    promised = StructType([StructField(HEADERS, ArrayType(header, containsNull=False))])
    with pytest.raises(ConfigError, match="may hold nulls"):
        columns_of(promised, options)


def test_nulls_empty_values_and_headers_arrive_as_they_are() -> None:
    from service.spark.read.arrow import arrow_schema, record_batch

    builder = BatchBuilder(40)
    builder.add(1_700_000_000_001, None, b"")
    builder.add(-1, b"", None, [("a", b"1"), ("a", None), ("", b"")])
    builder.add(0, b"k", b"v")
    (columns,) = ColumnDecoder().decode(builder.build())
    batch = record_batch(columns, "t", 3, arrow_schema(ALL))
    batch.validate(full=True)
    assert batch.column("key").to_pylist() == [None, b"", b"k"]
    assert batch.column("value").to_pylist() == [b"", None, b"v"]
    assert batch.column("offset").to_pylist() == [40, 41, 42]
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [1_700_000_000_001_000, -1000, 0]
    assert batch.column("topic").to_pylist() == ["t"] * 3
    assert batch.column("partition").to_pylist() == [3] * 3
    assert batch.column("headers").to_pylist() == [
        None,
        [{"key": "a", "value": b"1"}, {"key": "a", "value": None}, {"key": "", "value": b""}],
        None,
    ]


def test_a_time_that_spark_cannot_hold_is_an_error_and_other_columns_are_read() -> None:
    from service.spark.read.arrow import arrow_schema, record_batch

    builder = BatchBuilder()
    builder.add(1 << 62, None, b"far")
    (columns,) = ColumnDecoder().decode(builder.build())
    with pytest.raises(OverflowError, match="schema without the timestamp column"):
        record_batch(columns, "t", 0, arrow_schema(ALL))
    rest = record_batch(columns, "t", 0, arrow_schema([ReadColumn("value")]))
    assert rest.to_pydict() == {"value": [b"far"]}


@pytest.mark.parametrize(
    ("column", "changed"),
    [("value", {1: 2**31 - 1}), ("value", {1: 5, 2: 4}), ("key", {0: -1}), ("headers", {3: 1 << 20})],
)
def test_columns_that_are_not_sound_never_reach_the_jvm(column: str, changed: dict[int, int]) -> None:
    from service.spark.read.arrow import arrow_schema, record_batch

    builder = BatchBuilder()
    for number in range(3):
        builder.add(number, b"key", b"value", [("a", b"1")])
    (columns,) = ColumnDecoder().decode(builder.build())
    field = "header_lists" if column == "headers" else f"{column}_offsets"
    offsets = array("i", bytes(getattr(columns, field)))
    for position, offset in changed.items():
        offsets[position] = offset
    setattr(columns, field, memoryview(offsets).cast("B"))
    with pytest.raises(CorruptionError, match=f"column {column}: "):
        record_batch(columns, "t", 0, arrow_schema([ReadColumn(column)]))


@pytest.mark.parametrize("count", [0, 1, 131_072, 131_073])
def test_the_topic_and_the_partition_are_on_every_row(count: int) -> None:
    from service.spark.read.arrow import arrow_schema, offset_batch

    schema = arrow_schema(
        [ReadColumn("topic", False), ReadColumn("partition", False), ReadColumn("offset", False)]
    )
    for topic, partition in (("été", 7), ("t", 0)):
        batch = offset_batch(range(40, 40 + count), topic, partition, schema)
        batch.validate(full=True)
        assert batch.to_pydict() == {
            "topic": [topic] * count,
            "partition": [partition] * count,
            "offset": list(range(40, 40 + count)),
        }


def test_a_task_that_reads_does_not_import_pandas() -> None:
    """Half a second in each worker of each session, and collected with every task's garbage from then on."""
    script = """
import sys
from service.records.builder import BatchBuilder
from service.records.columns import ColumnDecoder
from service.spark.read.arrow import arrow_schema, offset_batch, record_batch
from service.spark.schema import COLUMNS, HEADERS, ReadColumn
builder = BatchBuilder()
builder.add(1, b"k", b"v", [("a", b"1")])
(columns,) = ColumnDecoder().decode(builder.build())
record_batch(columns, "t", 0, arrow_schema([ReadColumn(name) for name in (*COLUMNS, HEADERS)]))
offset_batch(range(5), "t", 0, arrow_schema([ReadColumn(name) for name in ("offset", "topic", "partition")]))
print("pandas" in sys.modules)
"""
    assert subprocess.check_output([sys.executable, "-c", script], cwd=REPOSITORY, text=True) == "False\n"
