"""Code that batch reads and streams share: opening the archive of the options, and the work of one task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from service.spark.options import ReadOptions
from service.spark.plan.archive import ArchiveReader
from service.spark.plan.memory import PlanCache
from service.spark.schema import ReadColumn
from service.spark.store import open_store_of
from service.spark.tail.cut_view import CutViews
from service.spark.tail.options import CutOptions, Tail, TailOptions


def open_archive(
    options: ReadOptions, tail: Tail | None, cache: PlanCache | None = None, views: CutViews | None = None
) -> ArchiveReader:
    """Return the archive that the options name, with the tail that they ask for.

    `cache` and `views` hold what earlier plans of the same bucket have read.
    """
    from service.spark.tail.archive import LiveArchiveReader
    from service.spark.tail.cut_archive import CutArchiveReader

    store = open_store_of(options)
    if tail is None:
        return ArchiveReader(store, read_committed=options.read_committed, cache=cache)
    if isinstance(tail, CutOptions):
        views = CutViews() if views is None else views
        return CutArchiveReader(store, views, read_committed=options.read_committed, cache=cache)
    return LiveArchiveReader(
        store,
        tail,
        read_committed=options.read_committed,
        fail_on_data_loss=options.fail_on_data_loss,
        cache=cache,
    )


def read_part(
    part: Any, options: ReadOptions, tail: Tail | None, columns: Sequence[ReadColumn]
) -> Iterator[Any]:
    """Return the rows of one task: of a `Split` of the archive, a `TailSplit`, a `CutSplit`, or none."""
    from service.spark.read.split_reader import read_split
    from service.spark.tail.cut_splits import CutSplit
    from service.spark.tail.plan import TailSplit

    if part is None:  # Spark's stand-in for "no partitions at all"
        return iter(())
    if isinstance(part, TailSplit):
        from service.spark.tail.reader import read_tail

        assert isinstance(tail, TailOptions)
        return read_tail(part, tail, options, columns)
    if isinstance(part, CutSplit):
        from service.spark.tail.cut_reader import read_cut

        return read_cut(open_store_of(options), part, options, columns)
    return read_split(open_store_of(options), part, options, columns)
