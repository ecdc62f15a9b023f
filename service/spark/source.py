"""The Python data source ``firn``: what Spark sees. Needs pyspark.

Spark makes a `FirnDataSource` in a worker process of the driver, asks it for a reader and that for its
partitions; both are pickled, without any plan in them, and each task calls the reader's `read` with a split.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

from pyspark.sql.datasource import DataSource

from service.spark.batch import FirnReader
from service.spark.kafka_options import words
from service.spark.options import ReadOptions
from service.spark.schema import Column, check_columns, schema_ddl
from service.spark.stream.options import includes_headers, parse_stream
from service.spark.stream.reader import FirnStreamReader
from service.spark.tail.options import parse_batch
from service.spark.worker_bootstrap import reviver
from service.spark.write.options import parse_write
from service.spark.write.writer import FirnStreamWriter, FirnWriter

log = logging.getLogger(__name__)


class FirnDataSource(DataSource):
    """``spark.read.format("firn").option("url", …).option("subscribe", …).load()``; see docs/spark.md."""

    def __init__(self, options: Any, parallelism: int | None = None) -> None:
        """`parallelism` is what the session says that Spark has; the option of that name comes before it."""
        super().__init__(options)
        self._parallelism = parallelism

    def __reduce__(self) -> Any:
        return reviver(), (self.options, self._parallelism)

    @classmethod
    def name(cls) -> str:
        return "firn"

    def schema(self) -> str:
        return schema_ddl(include_headers=includes_headers(self.options))

    def reader(self, schema: Any) -> FirnReader:
        options, tail = parse_batch(self._read_options())
        _say(*words(self.options))
        return FirnReader(options, columns_of(schema, options), tail)

    def streamReader(self, schema: Any) -> FirnStreamReader:
        options = parse_stream(self._read_options())
        _say(*words(self.options))
        return FirnStreamReader(options, columns_of(schema, options.read))

    def writer(self, schema: Any, overwrite: bool) -> FirnWriter:
        return FirnWriter(parse_write(self.options, _fields(schema)), overwrite=overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> FirnStreamWriter:
        # Output mode complete: a micro-batch brings the whole result, and sends it, as with Spark's sink.
        return FirnStreamWriter(parse_write(self.options, _fields(schema), streaming=True))

    def _read_options(self) -> dict[str, str]:
        default = {} if self._parallelism is None else {"parallelism": str(self._parallelism)}
        return {**default, **self.options}


def _fields(schema: Any) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


@lru_cache(maxsize=64)
def _say(*words: str) -> None:
    """Once in each process: Spark makes its readers again and again."""
    for text in words:
        log.warning("%s", text)


def columns_of(schema: Any, options: ReadOptions) -> tuple[Column, ...]:
    """The columns that a Spark schema asks for; `ConfigError` for one that the source does not have."""
    fields = [
        (field.name, field.dataType.simpleString(), field.nullable and _may_be_null(field.dataType))
        for field in schema.fields
    ]
    return check_columns(fields, include_headers=options.include_headers)


def _may_be_null(kind: Any) -> bool:
    """Whether everything inside an array or a struct may be null, as it is in the source's own schema."""
    if hasattr(kind, "elementType"):
        return bool(kind.containsNull) and _may_be_null(kind.elementType)
    return all(field.nullable and _may_be_null(field.dataType) for field in getattr(kind, "fields", ()))
