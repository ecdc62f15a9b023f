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
from service.spark.parts import open_archive, read_part
from service.spark.plan.memory import Memory
from service.spark.schema import Column
from service.spark.stream.offsets import decode_offsets, encode_offsets
from service.spark.stream.options import StreamOptions

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
        from service.spark.stream.plan import StreamPlan

        if not CAN_LIMIT and (options.max_offsets or options.max_bytes):
            raise ConfigError("options maxOffsetsPerTrigger and maxBytesPerTrigger need Spark 4.2 or newer")
        if not CAN_LIMIT and options.read.fail_on_data_loss and not options.fail_on_missing:
            # Sources are not told there how far they were, so nobody would keep that for a missing topic.
            raise ConfigError("option failOnMissingTopic=false needs Spark 4.2 or newer")
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
        return read_part(partition.value, self._options.read, self._options.tail, self._columns)
