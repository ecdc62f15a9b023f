"""What batch reads and streams share: the archive as options name it, and the work of one task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from service.spark.options import ReadOptions
from service.spark.plan.archive import Archive
from service.spark.plan.memory import Memory
from service.spark.schema import Column
from service.spark.store import open_store_of
from service.spark.tail.options import TailOptions


def open_archive(options: ReadOptions, tail: TailOptions | None, memory: Memory | None = None) -> Archive:
    """The archive that the options name, with its tail where brokers are given."""
    from service.spark.tail.archive import LiveArchive

    store = open_store_of(options)
    if tail is None:
        return Archive(store, read_committed=options.read_committed, memory=memory)
    return LiveArchive(
        store,
        tail,
        read_committed=options.read_committed,
        fail_on_data_loss=options.fail_on_data_loss,
        memory=memory,
    )


def read_part(
    part: Any, options: ReadOptions, tail: TailOptions | None, columns: Sequence[Column]
) -> Iterator[Any]:
    """What one task reads: a `Split` of the archive, a `TailSplit`, or nothing."""
    from service.spark.read.split_reader import read_split
    from service.spark.tail.plan import TailSplit

    if part is None:  # Spark's stand-in for "no partitions at all"
        return iter(())
    if isinstance(part, TailSplit):
        from service.spark.tail.reader import read_tail

        assert tail is not None
        return read_tail(part, tail, options, columns)
    return read_split(open_store_of(options), part, options, columns)
