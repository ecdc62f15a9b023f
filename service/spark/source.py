"""The Python data source ``firn``: what Spark sees. Needs pyspark.

Spark makes a `FirnDataSource` in a worker process of the driver, asks it for a reader and that for its
partitions; the reader is pickled, without any plan in it, and each task calls `FirnReader.read` with a split.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from service.spark.filters import Condition, Pushed, push
from service.spark.options import ReadOptions
from service.spark.schema import Column, check_columns, schema_ddl
from service.spark.stream import FirnStreamReader, open_archive, read_part
from service.spark.stream_options import TailOptions, includes_headers, parse_batch, parse_stream
from service.spark.workers import spare_the_collector

_NOT_NARROWED = Pushed()


class FirnDataSource(DataSource):
    """``spark.read.format("firn").option("url", …).option("subscribe", …).load()``; see docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "firn"

    def schema(self) -> str:
        spare_the_collector()
        return schema_ddl(include_headers=includes_headers(self.options))

    def reader(self, schema: Any) -> FirnReader:
        spare_the_collector()
        options, tail = parse_batch(self.options)
        return FirnReader(options, columns_of(schema, options), tail)

    def streamReader(self, schema: Any) -> FirnStreamReader:
        options = parse_stream(self.options)
        return FirnStreamReader(options, columns_of(schema, options.read))


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


class FirnReader(DataSourceReader):
    """One batch read."""

    def __init__(
        self, options: ReadOptions, columns: Sequence[Column], tail: TailOptions | None = None
    ) -> None:
        self._options = options
        self._tail = tail
        self._columns = tuple(columns)
        self._pushed = _NOT_NARROWED

    @property
    def pushFilters(self) -> Callable[[list[Any]], Iterable[Any]]:
        return _Pushdown(self)

    def push(self, filters: Sequence[Any]) -> list[Any]:
        """Narrow the read by what can be narrowed; returns the filters that Spark has to evaluate."""
        spare_the_collector()
        self._pushed, done = push(condition_of(one) for one in filters)
        return [one for one, is_done in zip(filters, done, strict=True) if not is_done]

    def partitions(self) -> list[Any]:
        from service.spark.plan import plan_ranges, resolve_ranges
        from service.spark.tail import plan_tail

        spare_the_collector()
        options, pushed = self._options, self._pushed
        with open_archive(options, self._tail) as archive:
            ranges = resolve_ranges(archive, options, pushed)
            splits = plan_ranges(archive, ranges, options, pushed, parallelism=os.cpu_count() or 1)
        return [InputPartition(one) for one in (*splits, *plan_tail(ranges, options, pushed))]

    def read(self, partition: Any) -> Iterator[Any]:
        return read_part(partition.value, self._options, self._tail, self._pushed, self._columns)


class _Pushdown:
    """`FirnReader.push` for sessions with filter pushdown and for those without.

    Spark fails a query whose reader has a `pushFilters` where ``spark.sql.python.filterPushdown.enabled`` is
    off, lest a source rely on filters that never come. This one does not: it reads more and Spark filters.
    Spark tells by the function behind the method, so that is the base class's here.
    """

    def __init__(self, reader: FirnReader) -> None:
        self.__func__ = getattr(DataSourceReader, "pushFilters", None)
        self._reader = reader

    def __call__(self, filters: list[Any]) -> list[Any]:
        return self._reader.push(filters)


def condition_of(found: Any) -> Condition:
    """A pyspark filter in planning's words."""
    negated = type(found).__name__ == "Not"
    inner = found.child if negated else found
    column = ".".join(inner.attribute)
    return Condition(column, type(inner).__name__, getattr(inner, "value", None), negated)
