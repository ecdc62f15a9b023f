"""The Python data source ``firn`` that Spark instantiates. Needs pyspark.

Spark makes a `FirnDataSource` in a worker process of the driver, gets a reader from it and partitions from
that; both are pickled without a plan, and each task calls the reader's `read` with a split.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

from pyspark.sql.datasource import DataSource

from service.spark.batch import FirnReader
from service.spark.kafka_options import ignored_option_warnings
from service.spark.options import ReadOptions
from service.spark.schema import ReadColumn, check_columns, schema_ddl
from service.spark.stream.options import includes_headers, parse_stream
from service.spark.stream.reader import FirnStreamReader
from service.spark.tail.options import parse_batch
from service.spark.worker_bootstrap import reviver
from service.spark.write.options import parse_write
from service.spark.write.writer import FirnStreamWriter, FirnWriter

log = logging.getLogger(__name__)


class FirnDataSource(DataSource):
    """The data source: ``spark.read.format("firn").option("url", …).option("subscribe", …).load()``.

    docs/spark.md lists its options.
    """

    def __init__(self, options: Any, parallelism: int | None = None) -> None:
        """`parallelism` is the session's number of tasks; the option of that name overrides it."""
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
        _warn_once(*ignored_option_warnings(self.options))
        return FirnReader(options, columns_of(schema, options), tail)

    def streamReader(self, schema: Any) -> FirnStreamReader:
        options = parse_stream(self._read_options())
        _warn_once(*ignored_option_warnings(self.options))
        return FirnStreamReader(options, columns_of(schema, options.read))

    def writer(self, schema: Any, overwrite: bool) -> FirnWriter:
        return FirnWriter(parse_write(self.options, _fields(schema)), overwrite=overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> FirnStreamWriter:
        # In output mode complete each micro-batch sends the whole result, as Spark's Kafka sink does.
        return FirnStreamWriter(parse_write(self.options, _fields(schema), streaming=True))

    def _read_options(self) -> dict[str, str]:
        default = {} if self._parallelism is None else {"parallelism": str(self._parallelism)}
        return {**default, **self.options}


def _fields(schema: Any) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


@lru_cache(maxsize=64)
def _warn_once(*warnings: str) -> None:
    """Log each warning once in a process: Spark makes its readers again and again."""
    for text in warnings:
        log.warning("%s", text)


def columns_of(schema: Any, options: ReadOptions) -> tuple[ReadColumn, ...]:
    """Return the columns that a Spark schema requests; `ConfigError` for one that the source lacks."""
    fields = [
        (field.name, field.dataType.simpleString(), field.nullable and _may_be_null(field.dataType))
        for field in schema.fields
    ]
    return check_columns(fields, include_headers=options.include_headers)


def _may_be_null(kind: Any) -> bool:
    """Return whether everything inside an array or a struct may be null, as in the source's own schema."""
    if hasattr(kind, "elementType"):
        return bool(kind.containsNull) and _may_be_null(kind.elementType)
    return all(field.nullable and _may_be_null(field.dataType) for field in getattr(kind, "fields", ()))
