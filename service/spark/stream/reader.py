"""The stream source that Spark calls: ``spark.readStream.format("firn")``. Needs pyspark.

Spark keeps one reader in a Python process of the driver for as long as the query runs, asks it for the next
offsets, writes them to the checkpoint and lets it plan the range. Tasks get a copy of the reader and a split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from service.base.errors import ConfigError
from service.spark.parts import open_archive, read_part
from service.spark.plan.memory import PlanCache
from service.spark.schema import ReadColumn
from service.spark.stream.offsets import decode_position, encode_position
from service.spark.stream.options import StreamOptions
from service.spark.tail.cut_view import CutViews

try:
    from pyspark.sql.streaming import datasource as control

    _MIXIN: Any = control.SupportsTriggerAvailableNow
except (ImportError, AttributeError):
    # Before Spark 4.2 Python sources have no limits, and AvailableNow is one batch of everything.
    control = None
    _MIXIN = object

CAN_LIMIT: Final = control is not None
"""True where this Spark supports limits of Python sources."""


class FirnStreamReader(DataSourceStreamReader, _MIXIN):  # type: ignore[misc]
    """One streaming query's reader."""

    def __init__(self, options: StreamOptions, columns: Sequence[ReadColumn]) -> None:
        from service.spark.stream.plan import StreamPlan

        if not CAN_LIMIT and options.limits:
            raise ConfigError(
                f"options that need Spark 4.2 or newer: {', '.join(options.limits)}. Older versions do not "
                "report to a Python source where a batch begins"
            )
        if not CAN_LIMIT and options.read.fail_on_data_loss and not options.fail_on_missing:
            # Older versions report no start, so the offsets of a missing topic would be lost.
            raise ConfigError("option failOnMissingTopic=false needs Spark 4.2 or newer")
        self._options = options
        self._columns = tuple(columns)
        self._plan = StreamPlan(
            options, partial(open_archive, options.read, options.tail, PlanCache(), CutViews())
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for tasks: how to read, without the driver's plan and its cache."""
        return {name: value for name, value in self.__dict__.items() if name != "_plan"}

    def initialOffset(self) -> dict[str, Any]:
        return encode_position(self._plan.initial())

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        position = None if start is None else decode_position(start)
        is_limited = CAN_LIMIT and not isinstance(limit, control.ReadAllAvailable)
        return encode_position(self._plan.latest(position, limited=is_limited))

    def getDefaultReadLimit(self) -> Any:
        """Return a limit for Spark to pass to `latestOffset`; `StreamPlan` applies all that are set."""
        if self._options.max_offsets is not None:
            return control.ReadMaxRows(self._options.max_offsets)
        if self._options.max_bytes is not None:
            return control.ReadMaxBytes(self._options.max_bytes)
        if self._options.min_offsets is not None:
            return control.ReadMinRows(self._options.min_offsets)
        return control.ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._plan.fix_target()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._plan.report()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        splits = self._plan.plan(decode_position(start), decode_position(end))
        return [InputPartition(one) for one in splits]

    def read(self, partition: Any) -> Iterator[Any]:
        return read_part(partition.value, self._options.read, self._options.tail, self._columns)
