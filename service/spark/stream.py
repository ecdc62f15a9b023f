"""The stream that Spark sees: ``spark.readStream.format("firn")``. Needs pyspark.

Spark keeps one reader in a Python process of the driver for as long as the query runs, asks it how far it can
go, writes that to the checkpoint and has it plan the range. Tasks get a reader of their own and a split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from service.base.errors import ConfigError
from service.spark.archive import Archive
from service.spark.filters import Pushed
from service.spark.memory import Memory
from service.spark.options import ReadOptions
from service.spark.schema import Column
from service.spark.stream_offsets import decode_offsets, encode_offsets
from service.spark.stream_options import StreamOptions, TailOptions
from service.spark.workers import spare_the_collector

try:
    from pyspark.sql.streaming import datasource as control

    _MIXIN: Any = control.SupportsTriggerAvailableNow
except (ImportError, AttributeError):
    # Before Spark 4.2 there are no limits for Python sources, and AvailableNow is one batch of everything.
    control = None
    _MIXIN = object

CAN_LIMIT: Final = control is not None
"""Whether this Spark knows limits of Python sources."""


class FirnStreamReader(DataSourceStreamReader, _MIXIN):  # type: ignore[misc]
    """One streaming query's reader."""

    def __init__(self, options: StreamOptions, columns: Sequence[Column]) -> None:
        from service.spark.stream_plan import StreamPlan

        if not CAN_LIMIT and (options.max_offsets or options.max_bytes):
            raise ConfigError("options maxOffsetsPerTrigger and maxBytesPerTrigger need Spark 4.2 or newer")
        self._options = options
        self._columns = tuple(columns)
        self._plan = StreamPlan(options, partial(open_archive, options.read, options.tail, Memory()))

    def __getstate__(self) -> dict[str, Any]:
        """What tasks get: how to read, without the driver's plan and what that remembers."""
        return {name: value for name, value in self.__dict__.items() if name != "_plan"}

    def initialOffset(self) -> dict[str, Any]:
        return encode_offsets(self._plan.initial())

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        offsets = None if start is None else decode_offsets(start)
        is_limited = CAN_LIMIT and not isinstance(limit, control.ReadAllAvailable)
        return encode_offsets(self._plan.latest(offsets, limited=is_limited))

    def getDefaultReadLimit(self) -> Any:
        """What Spark hands back to `latestOffset`; where both limits are set, both are kept there."""
        if self._options.max_offsets is not None:
            return control.ReadMaxRows(self._options.max_offsets)
        if self._options.max_bytes is not None:
            return control.ReadMaxBytes(self._options.max_bytes)
        return control.ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._plan.fix_target()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return encode_offsets(self._plan.newest) or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        return [InputPartition(one) for one in self._plan.plan(decode_offsets(start), decode_offsets(end))]

    def read(self, partition: Any) -> Iterator[Any]:
        return read_part(partition.value, self._options.read, self._options.tail, Pushed(), self._columns)


def open_archive(options: ReadOptions, tail: TailOptions | None, memory: Memory | None = None) -> Archive:
    """The archive that the options name, with its tail where brokers are given."""
    from service.spark.reader import open_store_of
    from service.spark.tail import LiveArchive

    store = open_store_of(options)
    if tail is None:
        return Archive(store, read_committed=options.read_committed, memory=memory)
    return LiveArchive(store, tail, read_committed=options.read_committed, memory=memory)


def read_part(
    part: Any, options: ReadOptions, tail: TailOptions | None, pushed: Pushed, columns: Sequence[Column]
) -> Iterator[Any]:
    """What one task reads: a `Split` of the archive, a `TailSplit`, or nothing."""
    from service.spark.reader import open_store_of, read_split
    from service.spark.tail import TailSplit

    spare_the_collector()
    if part is None:  # Spark's stand-in for "no partitions at all"
        return iter(())
    if isinstance(part, TailSplit):
        from service.spark.tail_reader import read_tail

        assert tail is not None
        return read_tail(part, tail, options, pushed, columns)
    return read_split(open_store_of(options), part, options, pushed, columns)
