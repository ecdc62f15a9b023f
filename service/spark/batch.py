"""A batch read: ``spark.read.format("firn")``. Needs pyspark.

Spark keeps the reader, with the result of its `pushFilters`, in one object that all scans of a DataFrame
share. A reader that narrows itself by a filter would answer the next query of the same frame with the rows
of the first one (docs/adr/0005). So this one takes no filters; ``where=`` narrows a load.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from service.spark.options import ReadOptions
from service.spark.parallelism import parallelism_of
from service.spark.parts import open_archive, read_part
from service.spark.schema import ReadColumn
from service.spark.tail.options import Tail


class FirnReader(DataSourceReader):
    """The reader of one batch read."""

    def __init__(self, options: ReadOptions, columns: Sequence[ReadColumn], tail: Tail | None = None) -> None:
        self._options = options
        self._tail = tail
        self._columns = tuple(columns)

    def partitions(self) -> list[Any]:
        from service.spark.plan.ranges import plan_ranges, resolve_ranges
        from service.spark.tail.cut_splits import plan_behind

        options = self._options
        with open_archive(options, self._tail) as archive:
            ranges = resolve_ranges(archive, options)
            splits = plan_ranges(archive, ranges, options, parallelism=parallelism_of(options))
            behind = plan_behind(archive, ranges, options)
        return [InputPartition(one) for one in (*splits, *behind)]

    def read(self, partition: Any) -> Iterator[Any]:
        return read_part(partition.value, self._options, self._tail, self._columns)
