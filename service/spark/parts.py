"""Code that batch reads and streams share: opening the archive of the options, and the work of one task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from service.spark.options import ReadOptions
from service.spark.plan.archive import ArchiveReader
from service.spark.plan.memory import PlanCache
from service.spark.schema import ReadColumn
from service.spark.store import open_store_of
from service.spark.tail.options import TailOptions


def open_archive(
    options: ReadOptions, tail: TailOptions | None, cache: PlanCache | None = None
) -> ArchiveReader:
    """Return the archive that the options name, with its tail where brokers are given."""
    from service.spark.tail.archive import LiveArchiveReader

    store = open_store_of(options)
    if tail is None:
        return ArchiveReader(store, read_committed=options.read_committed, cache=cache)
    return LiveArchiveReader(
        store,
        tail,
        read_committed=options.read_committed,
        fail_on_data_loss=options.fail_on_data_loss,
        cache=cache,
    )


def read_part(
    part: Any, options: ReadOptions, tail: TailOptions | None, columns: Sequence[ReadColumn]
) -> Iterator[Any]:
    """Return the rows of one task: of a `Split` of the archive, of a `TailSplit`, or none."""
    from service.spark.read.split_reader import read_split
    from service.spark.tail.plan import TailSplit

    if part is None:  # Spark's stand-in for "no partitions at all"
        return iter(())
    if isinstance(part, TailSplit):
        from service.spark.tail.reader import read_tail

        assert tail is not None
        return read_tail(part, tail, options, columns)
    return read_split(open_store_of(options), part, options, columns)
