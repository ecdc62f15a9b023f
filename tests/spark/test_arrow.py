"""What the tasks hand to Spark, without a JVM."""

from __future__ import annotations

import pytest

from service.base.errors import ConfigError
from service.records.builder import BatchBuilder
from service.records.columns import ColumnDecoder
from service.spark.schema import COLUMNS, HEADERS, NEVER_NULL, Column, schema_ddl

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install -e '.[test,spark]'")

ALL = [Column(name) for name in (*COLUMNS, HEADERS)]


def test_the_arrow_schema_is_the_one_that_spark_compares_with() -> None:
    pytest.importorskip("pyspark")
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

    from service.spark.arrow import arrow_schema
    from service.spark.options import parse_options
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
    assert columns == tuple(Column(name, name not in NEVER_NULL) for name in (*COLUMNS, HEADERS))
    assert arrow_schema(columns).equals(to_arrow_schema(schema, timezone="UTC"))
    without_nulls = StructType([StructField("offset", LongType(), nullable=False)])
    expected = to_arrow_schema(without_nulls, timezone="UTC")
    assert arrow_schema(columns_of(without_nulls, options)).equals(expected)
    promised = StructType([StructField(HEADERS, ArrayType(header, containsNull=False))])
    with pytest.raises(ConfigError, match="may hold nulls"):
        columns_of(promised, options)


def test_nulls_empty_values_and_headers_arrive_as_they_are() -> None:
    from service.spark.arrow import arrow_schema, record_batch

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
    from service.spark.arrow import arrow_schema, record_batch

    builder = BatchBuilder()
    builder.add(1 << 62, None, b"far")
    (columns,) = ColumnDecoder().decode(builder.build())
    with pytest.raises(OverflowError, match="schema without the timestamp column"):
        record_batch(columns, "t", 0, arrow_schema(ALL))
    rest = record_batch(columns, "t", 0, arrow_schema([Column("value")]))
    assert rest.to_pydict() == {"value": [b"far"]}
